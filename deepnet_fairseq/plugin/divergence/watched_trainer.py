"""Around fairseq's training: a divergence is noticed, and ends it with a report and status 3 or sets it back.

fairseq answers a FloatingPointError by writing crash.pt and training on the batch once more under its NanDetector. The
file is as large as a checkpoint, written when the disk is fullest, holds weights that the checkpoint before also leads
to, and nothing reads it; the search is search.py's. So the answer is cut off where it begins.
"""

from __future__ import annotations

import logging
import math
import sys
from collections import deque
from pathlib import Path

import torch
from fairseq.logging import metrics

from ..checkpoints import holding
from ..distributed import agreement
from . import FLOOR, GRADIENTS, LOSS, STATUS, WEIGHTS, Diverged, Stop, diagnosis
from .rollback import Rollbacks
from .search import broken_parameters

KEPT = 20  # updates
logger = logging.getLogger(__name__)


class Watch:
    """What is known of the last updates without asking the device for anything.

    made: the last updates, each with its number from 1, the loss of the log (bits per token), the norm of its
    gradients, its learning rate and loss scale; skipped: how many updates in a row half precision has skipped now, and
    skipped_in_all, scale_before: the loss scale before them; norm, samples: of the update at work; least: the lowest
    loss so far; healthy: the last update with a loss of no more than twice that.
    """

    def __init__(self, least: float = math.inf):
        self.made: deque[dict] = deque(maxlen=KEPT)
        self.skipped = self.skipped_in_all = 0
        self.scale_before: float | None = None
        self.norm: torch.Tensor | float | None = None
        self.samples: list = []
        self.least = least
        self.healthy: int | None = None

    def rows(self) -> list[dict]:
        """One dict an update, of plain numbers."""
        return [{key: float(one) if torch.is_tensor(one) else one for key, one in row.items()} for row in self.made]

    def skip(self) -> None:
        """To be told that half precision has overflowed: the loss scale comes down, the batch is left out."""
        self.skipped += 1
        self.skipped_in_all += 1

    def update(self, row: dict) -> None:
        """To be told that an update is made; row: its number as "update", loss, gnorm, lr and loss_scale."""
        self.made.append(row)
        self.skipped, self.scale_before = 0, row["loss_scale"]
        if row["loss"] > 0:  # as a likelihood's; of others there is no telling
            self.least = min(self.least, row["loss"])
            self.healthy = row["update"] if row["loss"] <= 2 * self.least else self.healthy


def begin_watch(original, trainer, cfg, *args, **kwargs):
    """A trainer has a Watch and its rollbacks."""
    original(trainer, cfg, *args, **kwargs)
    trainer.watch, trainer.rollbacks = Watch(), Rollbacks(trainer.cfg)


def watch_step(original, trainer, samples, *args, **kwargs):
    """Diverged for a loss that is not finite."""
    watch, common = trainer.watch, trainer.cfg.common
    watch.samples, before, rate = samples, trainer.get_num_updates(), trainer.get_lr()
    logged = original(trainer, samples, *args, **kwargs)
    if trainer.get_num_updates() == before or (watch.made and watch.made[-1]["update"] == trainer.get_num_updates()):
        if common.amp and logged is None:
            watch.skip()
        return logged  # skipped; or AMP's second try at the batch, which came by here itself
    loss = float(logged.get("loss", 0.0))
    meter = metrics.get_meter("train", "loss_scale") if common.fp16 or common.amp else None  # as just logged
    scale = None if meter is None else float(meter.val)
    watch.update({"update": before + 1, "loss": loss, "gnorm": watch.norm, "lr": rate, "loss_scale": scale})
    if not math.isfinite(loss) and logged.get("sample_size", 1):
        raise Diverged(Stop(before + 1, LOSS, f"the loss is {loss}", samples))
    return logged


def watch_norm(original, trainer, clip_norm):
    """Where fairseq's loss scalers find an overflow."""
    watch = trainer.watch
    watch.norm = None
    try:
        watch.norm = original(trainer, clip_norm)
    except OverflowError:
        watch.skip()
        raise
    return watch.norm


def end_diverged(original, trainer):
    """The first thing fairseq does when training has raised. Diverged for a FloatingPointError on its way."""
    error = sys.exc_info()[1]
    if isinstance(error, Diverged):
        raise error
    if not isinstance(error, FloatingPointError) or "inconsistent between workers" in str(error):  # another trouble
        return original(trainer)
    reason = str(error).splitlines()[0]
    kind = FLOOR if "Minimum loss scale" in reason else GRADIENTS
    raise Diverged(Stop(trainer.get_num_updates() + 1, kind, reason, trainer.watch.samples)) from error


def resume_rollbacks(original, trainer, filename, *args, **kwargs):
    """Those that a run has had count on, and its learning rate is what they left."""
    trainer.rollbacks.resume(filename)
    return original(trainer, filename, *args, **kwargs)


def save_if_finite(original, cfg, trainer, *args, **kwargs):
    """Only weights that can be trained on take the place of a checkpoint."""
    if cfg.no_save:
        return original(cfg, trainer, *args, **kwargs)
    if broken := sum(agreement.gathered(broken_parameters(trainer.get_model())), []):
        reason = f"{broken[0]} is not finite; not saved"
        raise Diverged(Stop(trainer.get_num_updates(), WEIGHTS, reason, trainer.watch.samples))
    saved = original(cfg, trainer, *args, **kwargs)
    trainer.rollbacks.home = True
    return saved


def train_or_set_back(original, cfg, trainer, task, epoch_itr):
    """Around fairseq_cli.train.train, one epoch."""
    trainer.rollbacks.begin()
    while True:
        try:
            return original(cfg, trainer, task, epoch_itr)
        except Diverged as error:
            stop = error.stop  # and no more: the traceback would keep the step's tensors
        if not _set_back(trainer, epoch_itr, stop):
            holding.release()
            raise SystemExit(STATUS)


def _set_back(trainer, epoch_itr, stop: Stop) -> bool:
    """Reports, and takes back what can be. On every rank; rank 0 writes."""
    folder, first = Path(trainer.cfg.checkpoint.save_dir), agreement.is_first()
    before = diagnosis.read(folder) if first else []
    event = diagnosis.event(trainer, stop, epoch_itr.epoch)
    if first:
        events = [*before, event]
        diagnosis.write(folder, events)  # before anything else can go wrong
        for line in diagnosis.short(event):
            logger.warning(line)
    done = trainer.rollbacks.back(trainer, epoch_itr, stop)
    trainer.watch = Watch(trainer.watch.least)
    trainer.late.set_back(trainer.get_num_updates())
    if first and done:
        event["rollback"] = done
        diagnosis.write(folder, events)
        logger.warning(diagnosis.set_back(done))
    elif first:
        program = Path(sys.argv[0]).name
        print(f"{program}: error: {diagnosis.headline(event)}; report: {folder / diagnosis.TEXT}", file=sys.stderr)
    agreement.meet()
    return bool(done)
