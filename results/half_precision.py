"""Compare each method's first updates in half precision with float32: half_precision.py DATA [FLAG ...] > TABLE.

Trains deepnet_transformer_tiny 3L-3L on a folder of binarised data, with more flags of fairseq-train such as --cpu.
Prints a Markdown table: the loss (bits a token) of update 25 in each precision, the largest difference from float32 on
the way, and the number of batches that overflow before the loss scale, which begins at 2^28, fits.
"""

import itertools
import math
import sys

from fairseq.logging import metrics

from deepnet_fairseq import register
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.plugin.trainer import build_trainer, parse_training_flags
from deepnet_fairseq.text_table import markdown

UPDATES = 25
TOO_LARGE = ("--fp16-init-scale", str(2**28))
PRECISIONS = {"fp16": ("--fp16", *TOO_LARGE), "bf16": ("--bf16",), "amp": ("--amp", *TOO_LARGE)}
FLAGS = (
    "--arch", "deepnet_transformer_tiny", "--encoder-layers", "3", "--decoder-layers", "3", "--share-all-embeddings",
    "--optimizer", "adam", "--lr", "2e-3", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "10",
    "--warmup-init-lr", "1e-7", "--clip-norm", "1.0", "--criterion", "label_smoothed_cross_entropy",
    "--label-smoothing", "0.1", "--max-tokens", "600", "--num-workers", "0",
)  # fmt: skip


def train(data, *flags, updates: int = UPDATES):
    """Train, repeating batches that overflow; return the losses, the last loss scale and the trainer."""
    trainer = build_trainer(parse_training_flags([str(word) for word in (data, *FLAGS, *flags)]))
    iterator = trainer.get_train_iterator(1)
    trainer.begin_epoch(1)
    batches, losses = list(iterator.next_epoch_itr(shuffle=True)), []
    for batch in itertools.islice(itertools.cycle(batches), updates):
        logged = None
        while logged is None:
            with metrics.aggregate("train_inner"):
                logged = trainer.train_step([batch])
        losses.append(float(logged["loss"]))
    scaler = getattr(trainer.optimizer, "scaler", None)
    scale = 1.0 if scaler is None else scaler.get_scale() if trainer.cfg.common.amp else scaler.loss_scale
    return losses, scale, trainer


def rows(data, *flags):
    """Yield the rows of the table, the header first."""
    yield ["method", "fp32", *PRECISIONS, *(f"{name} at most" for name in PRECISIONS), "overflows"]
    for method in sorted(METHODS):
        chosen = ("--method", method, *METHODS[method].train_flags, *flags)
        exact = train(data, *chosen)[0]
        runs = {name: train(data, *chosen, *precision) for name, precision in PRECISIONS.items()}
        apart = [max(abs(a - b) for a, b in zip(losses, exact, strict=True)) for losses, *_ in runs.values()]
        last = [f"{losses[-1]:.3f}" for losses in (exact, *(losses for losses, *_ in runs.values()))]
        yield [f"`{method}`", *last, *(f"{one:.3f}" for one in apart), f"{28 - math.log2(runs['fp16'][1]):.0f}"]


if __name__ == "__main__":
    register()
    print(markdown(list(rows(*sys.argv[1:]))))
