"""Around fairseq's training: a divergence ends it with a report and status 3, or sets it back."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from fairseq import checkpoint_utils
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.trainer import Trainer

from ..compat.wrapping import wrap
from ..distributed import agreement
from . import report, text, watch
from .event import STATUS, WEIGHTS, Diverged, Stop
from .rollback import Rollbacks
from .search import broken_parameters

logger = logging.getLogger(__name__)


def install() -> None:
    """Patches fairseq's Trainer and checkpoints, and with a trainer built the loop; may be called again."""
    wrap(Trainer, "__init__", _build)
    wrap(Trainer, "train_step", watch.train_step)
    wrap(Trainer, "clip_grad_norm", watch.clip_grad_norm)
    wrap(Trainer, "consolidate_optimizer", watch.consolidate_optimizer)
    wrap(Trainer, "load_checkpoint", _load)
    wrap(AMPOptimizer, "clip_grad_norm", watch.clip_under_amp)
    wrap(checkpoint_utils, "save_checkpoint", _save)


def _build(original, trainer, cfg, *args, **kwargs):
    original(trainer, cfg, *args, **kwargs)
    trainer.watch, trainer.rollbacks = watch.Watch(), Rollbacks(trainer.cfg)
    for module in (sys.modules.get("fairseq_cli.train"), sys.modules.get("__main__")):  # either may be the program
        if hasattr(module, "validate_and_save"):
            wrap(module, "train", _train)


def _load(original, trainer, filename, *args, **kwargs):
    trainer.rollbacks.resume(filename)
    return original(trainer, filename, *args, **kwargs)


def _save(original, cfg, trainer, *args, **kwargs):
    """Only weights that can be trained on take the place of a checkpoint."""
    if cfg.no_save:
        return original(cfg, trainer, *args, **kwargs)
    mine = broken_parameters(trainer.get_model())
    broken = [name for names in agreement.gathered(mine) for name in names]
    if broken:
        update = trainer.get_num_updates()
        reason = f"{broken[0]} is not finite; not saved"
        raise Diverged(Stop(update, WEIGHTS, reason, True, trainer.watch.samples))
    saved = original(cfg, trainer, *args, **kwargs)
    trainer.rollbacks.home = True
    return saved


def _train(original, cfg, trainer, task, epoch_itr):
    """Around fairseq_cli.train.train, one epoch."""
    trainer.rollbacks.begin()
    while True:
        try:
            return original(cfg, trainer, task, epoch_itr)
        except Diverged as error:
            stop = error.stop  # and no more: the traceback would keep the step's tensors
        if not _set_back(trainer, epoch_itr, stop):
            raise SystemExit(STATUS)


def _set_back(trainer, epoch_itr, stop: Stop) -> bool:
    """Reports, and takes back what can be. On every rank; rank 0 writes."""
    folder = Path(trainer.cfg.checkpoint.save_dir)
    event = report.event(trainer, stop, epoch_itr.epoch)
    events = [*report.read(folder), event] if agreement.is_first() else []
    if agreement.is_first():
        report.write(folder, events)  # before anything else can go wrong
        for line in text.short(event):
            logger.warning(line)
    done = trainer.rollbacks.back(trainer, epoch_itr, stop)
    trainer.watch = watch.Watch(least=trainer.watch.least)
    if done and agreement.is_first():
        event["rollback"] = done
        report.write(folder, events)
        logger.warning(text.set_back(done))
    if not done and agreement.is_first():
        print(
            f"{Path(sys.argv[0]).name}: error: {text.headline(event)}; report: {folder / report.TEXT}", file=sys.stderr
        )
    agreement.meet()
    return bool(done)
