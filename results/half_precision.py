"""Compare each method's first updates in half precision with float32: half_precision.py DATA [FLAG ...] > TABLE.

Trains deepnet_transformer_tiny 3L-3L on a folder of binarised data, with more flags of fairseq-train such as --cpu.
Prints a Markdown table: the loss (bits a token) of update 25 in each precision, the largest difference from float32 on
the way, and how often a batch overflows in fp16 before the loss scale, which begins at 2^28, fits.
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
TOO_LARGE = ("--fp16-init-scale", str(2**28))  # first loss scale, at which the first batches overflow
# name in the table -> flags of fairseq-train
PRECISIONS = {"fp16": ("--fp16", *TOO_LARGE), "bf16": ("--bf16",), "amp": ("--amp", *TOO_LARGE)}
FLAGS = (
    "--arch", "deepnet_transformer_tiny", "--encoder-layers", "3", "--decoder-layers", "3", "--share-all-embeddings",
    "--optimizer", "adam", "--lr", "2e-3", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "10",
    "--warmup-init-lr", "1e-7", "--clip-norm", "1.0", "--criterion", "label_smoothed_cross_entropy",
    "--label-smoothing", "0.1", "--max-tokens", "600", "--num-workers", "0",
)  # fmt: skip


def train(data, *flags, updates: int = UPDATES):
    """Train with fairseq and return (losses, loss scale, trainer).

    losses: of each update, in bits a token; loss scale: the factor of the loss after the last update, 1.0 where none is
    used, as in float32 and bf16; trainer: fairseq's. data: folder of the binarised data; flags: of fairseq-train,
    beside FLAGS. The batches are those of the first epoch, again and again. A batch whose gradient overflows is
    repeated, each time at half the loss scale, until it makes an update.
    """
    words = [str(word) for word in (data, *FLAGS, *flags)]
    trainer = build_trainer(parse_training_flags(words))
    iterator = trainer.get_train_iterator(1)
    trainer.begin_epoch(1)
    batches = list(iterator.next_epoch_itr(shuffle=True))

    losses = []
    for batch in itertools.islice(itertools.cycle(batches), updates):
        logged = None  # it stays None where the gradient overflows
        while logged is None:
            with metrics.aggregate("train_inner"):  # which train_step logs to
                logged = trainer.train_step([batch])
        losses.append(float(logged["loss"]))

    scaler = getattr(trainer.optimizer, "scaler", None)
    if scaler is None:
        scale = 1.0
    elif trainer.cfg.common.amp:  # torch's GradScaler
        scale = scaler.get_scale()
    else:  # fairseq's DynamicLossScaler
        scale = scaler.loss_scale
    return losses, scale, trainer


def rows(data, *flags):
    """Yield the rows of the table, the header first: a method a row, trained in float32 and in each of PRECISIONS.

    data, flags: as in `train`.
    """
    header = ["method", "fp32", *PRECISIONS]
    header += [f"{name} at most" for name in PRECISIONS]
    yield [*header, "overflows"]

    for method in sorted(METHODS):
        method_flags = ("--method", method, *METHODS[method].train_flags, *flags)
        float32_losses, _scale, _trainer = train(data, *method_flags)
        last_losses = [f"{float32_losses[-1]:.3f}"]
        differences = []
        scales = {}  # last loss scale by name of the precision
        for name, precision in PRECISIONS.items():
            losses, scales[name], _trainer = train(data, *method_flags, *precision)
            last_losses.append(f"{losses[-1]:.3f}")
            largest = max(abs(a - b) for a, b in zip(losses, float32_losses, strict=True))
            differences.append(f"{largest:.3f}")
        overflows = f"{28 - math.log2(scales['fp16']):.0f}"  # each overflow halves the scale, which begins at 2^28
        yield [f"`{method}`", *last_losses, *differences, overflows]


if __name__ == "__main__":
    register()
    print(markdown(list(rows(*sys.argv[1:]))))
