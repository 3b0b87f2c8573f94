"""Say whether a trained model reads its source: held-out bits with its own sources and with those of other sentences.

python results/thousand_layers/source_blind.py DATA CHECKPOINT...

DATA is the binarised folder of the validation set. A model that does not read its source has the same bits with both.
Computes on a GPU if torch sees one.
"""

from __future__ import annotations

import math
import sys

import torch
from fairseq import checkpoint_utils
from fairseq.utils import apply_to_sample
from torch.nn.functional import cross_entropy

import deepnet_fairseq


def held_out_bits(checkpoint: str, data: str) -> tuple[float, float]:
    """Return the bits per token of the validation set, by a model: (with the right sources, with wrong ones).

    A wrong source is that of the sentence before it in the batch, and for the first one that of the last; in a batch
    of one sentence it is its own. checkpoint: file of a translation model; data: folder of the binarised data.
    """
    [model], _, task = checkpoint_utils.load_model_ensemble_and_task([checkpoint], arg_overrides={"data": data})
    task.load_dataset("valid")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device).eval()

    padding = task.target_dictionary.pad()
    nats = [0.0, 0.0]  # sums over all tokens of -ln p, with the right and the wrong sources
    tokens = 0
    max_tokens = 16_000 if device == "cuda" else 2000  # a GPU takes as long for a small batch as for a large one
    batches = task.get_batch_iterator(task.dataset("valid"), max_tokens=max_tokens)
    for batch in batches.next_epoch_itr(shuffle=False):
        batch = apply_to_sample(lambda tensor: tensor.to(device), batch)
        inputs = batch["net_input"]
        target = batch["target"].flatten()
        for shift in (0, 1):  # sentences by which the sources are moved against the targets
            source = inputs["src_tokens"].roll(shift, 0)
            lengths = inputs["src_lengths"].roll(shift, 0)
            scores = model(source, lengths, inputs["prev_output_tokens"])[0].float()
            loss = cross_entropy(scores.flatten(0, 1), target, ignore_index=padding, reduction="sum")
            nats[shift] += loss.item()
        tokens += batch["ntokens"]
    right, wrong = nats
    return right / math.log(2) / tokens, wrong / math.log(2) / tokens


if __name__ == "__main__":
    deepnet_fairseq.register()
    with torch.no_grad():
        for path in sys.argv[2:]:
            right, wrong = held_out_bits(path, sys.argv[1])
            print(path, f"{right:.3f}", f"{wrong:.3f}")
