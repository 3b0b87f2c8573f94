"""Say in how many dimensions the outputs of a model's layers differ between tokens, and what gradients its layers had.

python results/thousand_layers/dimensions.py DATA RUN... >> results/thousand_layers/dimensions.jsonl

DATA is the binarised folder of the validation set, RUN the folder of a training with checkpoint_last.pt and, if it had
the probe gradient_norm, probes.jsonl. Prints a line of JSON for each RUN, with the held-out bits of source_blind.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from fairseq import checkpoint_utils
from source_blind import held_out_bits
from torch import Tensor, nn

import deepnet_fairseq
from deepnet_fairseq.plugin.probe_record import FILE, read_record
from deepnet_fairseq.tools.environment import environment

SHARES = (0.002, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)  # of the depth: the layers that are looked at
TOKENS = 1000  # of the batch


def dimensions(vectors: Tensor) -> float:
    """Return the participation ratio of vectors (N, C), which lies between 1 and C.

    (sum of e)^2 / (sum of e^2) over the eigenvalues e of their covariance: 1 if all lie on a line, C if they differ as
    much in every direction.
    """
    differences = vectors.double() - vectors.double().mean(0)
    eigenvalues = torch.linalg.svdvals(differences).square()
    return float(eigenvalues.sum().square() / eigenvalues.square().sum())


def layers_of(depth: int) -> list[int]:
    """Return the numbers, from 1, of the layers that are looked at in a stack of so many layers."""
    return sorted({max(1, round(share * depth)) for share in SHARES})


@torch.no_grad()
def dimensions_by_layer(checkpoint: Path, data: str) -> dict[str, dict[int, float]]:
    """Return {"encoder" or "decoder": {number of a layer: dimensions of its outputs}} on a batch of held-out sentences.

    Padding is left out. checkpoint: file of a translation model; data: folder of the binarised data.
    """
    [model], _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], arg_overrides={"data": data})
    task.load_dataset("valid")
    model.eval()
    batches = task.get_batch_iterator(task.dataset("valid"), max_tokens=TOKENS).next_epoch_itr(shuffle=False)
    inputs = next(iter(batches))["net_input"]
    tokens = {"encoder": inputs["src_tokens"], "decoder": inputs["prev_output_tokens"]}
    outputs: dict[tuple[str, int], Tensor] = {}  # (stack, number of a layer) -> what it returns, (B, T, C)

    def keep_output(key: tuple[str, int], module: nn.Module) -> None:
        """Let a layer put its output into `outputs`."""
        module.register_forward_hook(lambda _module, _inputs, output: outputs.update({key: output}))

    for stack in tokens:
        layers = getattr(model, stack).layers
        for number in layers_of(len(layers)):
            keep_output((stack, number), layers[number - 1])
    model(**inputs)

    found: dict[str, dict[int, float]] = {stack: {} for stack in tokens}
    for (stack, number), output in outputs.items():
        is_token = tokens[stack].ne(task.target_dictionary.pad())
        found[stack][number] = round(dimensions(output[is_token]), 2)
    return found


def gradients(run: Path, layers: dict[str, dict[int, float]]) -> dict[int, dict[str, float]]:
    """Return {update: {"encoder.250": norm of the layer's gradient}} of a training's probed updates, {} without probes.

    layers: as dimensions_by_layer returns them, for the numbers of the layers.
    """
    if not (run / FILE).exists():
        return {}
    addresses = [f"{stack}.{number}" for stack, numbers in layers.items() for number in numbers]
    found = {}
    for update, probes in read_record(run / FILE).rows.items():
        norms = probes.get("gradient_norm", {})  # {} if the training had other probes alone
        found[update] = {address: norms[address] for address in addresses if address in norms}
    return found


def main() -> None:
    """Print a line of JSON for each training of the command line."""
    deepnet_fairseq.register()
    data, *runs = sys.argv[1:]
    for folder in map(Path, runs):
        checkpoint = folder / "checkpoint_last.pt"
        state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
        with torch.no_grad():
            right, wrong = held_out_bits(str(checkpoint), data)
        by_layer = dimensions_by_layer(checkpoint, data)
        row = {
            "run": folder.name,
            "updates": state["optimizer_history"][-1]["num_updates"],
            "held_out_bits": {"own sources": round(right, 3), "other sources": round(wrong, 3)},
            "dimensions": by_layer,
            "gradient_norm": gradients(folder, by_layer),
            "environment": environment(gpus=0),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
