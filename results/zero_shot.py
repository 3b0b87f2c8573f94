"""Measure zero-shot accuracy by lm-evaluation-harness: python -m results.zero_shot CHECKPOINT ... > TABLE

The tasks are those of NormFormer's Table 2 (Shleifer et al. 2021), for causal models of any method. NormFormer does not
fold into a plain Transformer for `deepnet export`, so the harness evaluates fairseq's model and cuts text with the
tokenizer of an export. StoryCloze is left out, because its authors hand out its text individually. Needs the extra
`huggingface` and lm_eval[hf]; the tasks' data come from the Hub. No model of that size has been trained, so no result
is recorded.
"""

import argparse
import sys
import tempfile
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import torch
from fairseq import tasks
from torch import nn

from deepnet_fairseq import register
from deepnet_fairseq.core.archs import LM
from deepnet_fairseq.core.models import BOS, EOS
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.building import from_checkpoint
from deepnet_fairseq.text_table import markdown
from deepnet_fairseq.tools.export.hub_models import SPECIAL_TOKENS, Port
from deepnet_fairseq.tools.export.hub_tokenizers import segmenter_of, write_tokenizer
from deepnet_fairseq.tools.export.huggingface import library

# task -> the metric of lm-evaluation-harness that papers report of it
TASKS = {"hellaswag": "acc_norm", "piqa": "acc", "winogrande": "acc", "openbookqa": "acc_norm"}


class HarnessModel(nn.Module):
    """fairseq's causal model with the interface that the harness expects: logits of input_ids, a config, a device.

    model: of this plug-in; config: of transformers, with its vocabulary's size, longest text and special tokens.
    """

    def __init__(self, model, config):
        super().__init__()
        self.model = model
        self.config = config

    @property
    def device(self):
        """Device of the parameters."""
        return next(self.parameters()).device

    def forward(self, input_ids):
        """Compute logits (B, T, V) of token numbers (B, T)."""
        return SimpleNamespace(logits=self.model(input_ids)[0])

    def tie_weights(self) -> None:
        """Do nothing, where the harness asks for it: weights that the model shares are shared since it was built."""


def harness_model(path: str, folder: Path, data: str | None = None, device: str = "cpu", batch: int = 16):
    """Return a checkpoint as a model that lm_eval's simple_evaluate takes.

    path: the checkpoint; folder: gets the config and the tokenizer in transformers' format; data: folder of the run's
    binarised data, None for the one it was trained from; device: as torch names it; batch: questions computed at once.
    Raises a UserError for a model that is no causal language model, or if the data do not say how text was segmented.
    """
    transformers = library()
    from lm_eval.models.huggingface import HFLM

    model, cfg = from_checkpoint(path)
    if model.NAME != LM:
        raise UserError(f"{path}: is no causal language model")
    if data:
        cfg.task.data = data
    task = tasks.setup_task(cfg.task)
    segmenter = segmenter_of(cfg.task.data, None)

    # Transformers has no config for fairseq's model. Any causal model's serves the harness: OPT's, without weights.
    begin = BOS if cfg.task.get("add_bos_token") else EOS  # by default fairseq's language models begin with EOS
    marks = SPECIAL_TOKENS | {"bos_token_id": begin, "max_position_embeddings": model.max_positions()}
    config = transformers.OPTConfig(vocab_size=len(task.target_dictionary), **marks)
    config.save_pretrained(folder)
    no_weights: dict = {}  # the tokenizer needs none
    port = Port("OPT", "ForCausalLM", marks, no_weights, model.max_positions(), bounded=True)
    tokenizer = write_tokenizer(transformers, folder, port, segmenter, task.source_dictionary, cfg.task.data)
    return HFLM(HarnessModel(model.to(device), config), tokenizer=tokenizer, backend="causal", batch_size=batch)


def rows(args):
    """Yield the rows of the table, the header first: a checkpoint a row, with its accuracy on each task in per cent.

    args: the flags of `main`.
    """
    from lm_eval import simple_evaluate

    yield ["checkpoint", *args.tasks, "average"]
    for path in args.checkpoints:
        with tempfile.TemporaryDirectory() as folder:
            model = harness_model(path, Path(folder), args.data, args.device, args.batch)
            results = simple_evaluate(model, tasks=args.tasks, limit=args.limit, bootstrap_iters=0)["results"]
        # the harness names a metric "acc,none" where answers pass no filter before they are scored
        scores = [100 * results[task][f"{TASKS[task]},none"] for task in args.tasks]
        scores.append(sum(scores) / len(scores))
        yield [f"`{path}`", *(f"{score:.1f}" for score in scores)]


def main(argv: list[str] | None = None) -> None:
    """Print the table in Markdown. argv: the arguments; None for those of the command line."""
    parser = argparse.ArgumentParser(prog="zero_shot", description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT", help="causal language model to evaluate")
    parser.add_argument("--data", help="folder of the run's binarised data (default: where it was trained from)")
    parser.add_argument(
        "--tasks", nargs="+", default=list(TASKS), choices=TASKS, help="tasks of the harness (default: all of these)"
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="ask only N questions of each task, for a trial (default: all)"
    )
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="device to compute on (default: cuda if torch sees a GPU, else cpu)",
    )
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="texts in a batch (default: 16)")
    args = parser.parse_args(argv)
    register()
    if find_spec("lm_eval") is None:
        sys.exit("zero_shot: error: lm_eval is not installed; pip install 'lm_eval[hf]'")
    try:
        with redirect_stdout(sys.stderr):
            table = markdown(list(rows(args)))
    except UserError as error:
        sys.exit(f"zero_shot: error: {error}")
    print(table)


if __name__ == "__main__":
    main()
