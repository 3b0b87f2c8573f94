"""The last updates of a training, and the moment in which it diverges.

fairseq answers a FloatingPointError by writing crash.pt and training on the batch once more under its NanDetector. The
file is as large as a checkpoint, written when the disk is fullest, holds weights that the checkpoint before also leads
to, and nothing reads it; the search is search.py's. So the answer is cut off where it begins.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from dataclasses import dataclass, field

import torch
from fairseq.logging import metrics

from .event import FLOOR, GRADIENTS, LOSS, Diverged, Stop

KEPT = 20  # updates
VALUES = ("loss", "gnorm", "lr", "loss_scale")


@dataclass
class Watch:
    """What is known of the last updates without asking the device for more than fairseq does.

    made: the last updates, each with the loss of the log (bits per token), the norm of its gradients, its learning rate
    and loss scale; skipped: how many updates in a row half precision has skipped now, and skipped_in_all; least: the
    lowest loss so far; healthy: the last update with a loss of no more than twice that.
    """

    made: deque = field(default_factory=lambda: deque(maxlen=KEPT))
    skipped: int = 0
    skipped_in_all: int = 0
    scale_before: float | None = None  # the loss scale before the updates skipped now
    norm: torch.Tensor | float | None = None  # of the update at work
    samples: list = field(default_factory=list)
    least: float = math.inf
    healthy: int | None = None

    def rows(self) -> list[dict]:
        """One dict an update."""
        return [
            {"update": row["update"]} | {key: None if row[key] is None else float(row[key]) for key in VALUES}
            for row in self.made
        ]

    def skip(self) -> None:
        """To be told that half precision has overflowed: the loss scale comes down, the batch is left out."""
        self.skipped += 1
        self.skipped_in_all += 1

    def update(self, row: dict) -> None:
        """To be told that an update is made; row: its number from 1 as "update", and VALUES."""
        self.made.append(row)
        self.skipped, self.scale_before = 0, row["loss_scale"]
        loss = row["loss"]
        if loss > 0:  # as a likelihood's; of others there is no telling
            self.least = min(self.least, loss)
            if loss <= 2 * self.least:
                self.healthy = row["update"]


def train_step(original, trainer, samples, *args, **kwargs):
    """Around Trainer.train_step. Diverged for a loss that is not finite."""
    watch = trainer.watch
    watch.samples, before, rate = samples, trainer.get_num_updates(), trainer.get_lr()
    logged = original(trainer, samples, *args, **kwargs)
    if trainer.get_num_updates() == before or (watch.made and watch.made[-1]["update"] == trainer.get_num_updates()):
        if trainer.cfg.common.amp and logged is None:
            watch.skip()
        return logged  # skipped; or AMP's second try at the batch, which came by here itself
    loss = float(logged.get("loss", 0.0))
    watch.update(
        {"update": before + 1, "loss": loss, "gnorm": watch.norm, "lr": rate, "loss_scale": _loss_scale(trainer)}
    )
    if not math.isfinite(loss) and logged.get("sample_size", 1):
        raise Diverged(Stop(before + 1, LOSS, f"the loss is {loss}", True, samples))
    return logged


def clip_grad_norm(original, trainer, clip_norm):
    """Around Trainer.clip_grad_norm, where fairseq's loss scalers find an overflow.

    FloatingPointError, which becomes Diverged further out, for a norm that is not finite.
    """
    watch = trainer.watch
    watch.norm = None
    try:
        watch.norm = original(trainer, clip_norm)
    except OverflowError:
        watch.skip()
        raise
    if not trainer.cfg.common.amp and not torch.isfinite(torch.as_tensor(watch.norm)).all():
        raise FloatingPointError("gradients are Nan/Inf")  # before fairseq asks whether the ranks' norms are the same
    return watch.norm


def clip_under_amp(original, optimizer, max_norm, aggregate_norm_fn=None):
    """Around AMPOptimizer.clip_grad_norm, which on a CPU, where --amp scales no loss, would ask for the scale."""
    if optimizer.scaler.is_enabled():
        return original(optimizer, max_norm, aggregate_norm_fn)
    norm = optimizer.fp32_optimizer.clip_grad_norm(max_norm, aggregate_norm_fn)
    if not torch.isfinite(norm).all():
        raise FloatingPointError("gradients are Nan/Inf")
    return norm


def consolidate_optimizer(original, trainer):
    """Around Trainer.consolidate_optimizer, the first thing fairseq does when training has raised.

    Diverged for a FloatingPointError on its way.
    """
    error = sys.exc_info()[1]
    if isinstance(error, Diverged):
        raise error
    if isinstance(error, FloatingPointError):
        reason = str(error).splitlines()[0]
        if "inconsistent between workers" in reason:  # finite, and another trouble
            return original(trainer)
        kind = FLOOR if "Minimum loss scale" in reason else GRADIENTS
        raise Diverged(Stop(trainer.get_num_updates() + 1, kind, reason, False, trainer.watch.samples)) from error
    return original(trainer)


def _loss_scale(trainer) -> float | None:
    """As fairseq has just logged it."""
    if not (trainer.cfg.common.fp16 or trainer.cfg.common.amp):
        return None
    meter = metrics.get_meter("train", "loss_scale")
    return None if meter is None else float(meter.val)
