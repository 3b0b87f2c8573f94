"""Around fairseq-train's loop: a signal stops it with a checkpoint, a failed last save is no success."""

from __future__ import annotations

import copy
import logging
import math
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

from fairseq import checkpoint_utils, utils
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from ..compat.wrapping import wrap
from ..distributed import agreement
from ..divergence.event import Diverged
from ..errors import UserError
from . import atomic, background, catching_up, choice, holding, integrity, process_state, retention, saving, signals

log = logging.getLogger(__name__)


class Stopped(Exception):
    """A signal came: raised out of a validation, and caught where fairseq-train would save."""


def install() -> None:
    """Patches fairseq-train's loop, and what it loads; may be called again."""
    wrap(utils, "import_user_module", _import)
    wrap(checkpoint_utils, "load_checkpoint", _load)
    wrap(checkpoint_utils, "load_checkpoint_to_cpu", _verified)
    wrap(Trainer, "valid_step", _valid_step)
    _around_program()


def _around_program() -> None:
    """fairseq-train's own functions, looked up when they are called; other programs do not have them."""
    for module in (sys.modules.get("fairseq_cli.train"), sys.modules.get("__main__")):
        if hasattr(module, "validate_and_save"):
            wrap(module, "add_defaults", saving.begin)
            wrap(module, "train", _train)
            wrap(module, "validate_and_save", _validate_and_save)


def _import(original, *args, **kwargs) -> None:
    """The first thing that fairseq-train's main does: by now the program is there."""
    original(*args, **kwargs)
    _around_program()


def _verified(original, path, *args, **kwargs):
    if Path(path).is_file():
        integrity.check(path)
    return original(path, *args, **kwargs)


def _load(original, cfg, trainer, **kwargs):
    """Of what --restore-file names, or of the newest checkpoint that is whole."""
    background.wait()
    trainer.over = None
    if cfg.restore_file == choice.DEFAULT:
        folder, suffix = Path(cfg.save_dir), trainer.checkpoint_suffix
        if path := agreement.from_first(lambda: str(choice.other_than_last(folder, suffix) or "")):
            cfg = copy.deepcopy(cfg)
            cfg.restore_file = path.removesuffix(f"{suffix}.pt") + ".pt"  # fairseq adds the suffix
            cfg.finetune_from_model = cfg.continue_once = None
    another_run = cfg.finetune_from_model is not None and not (Path(cfg.save_dir) / choice.DEFAULT).exists()
    extra_state, epoch_itr = original(cfg, trainer, **kwargs)
    if extra_state is not None:
        if not (another_run or cfg.reset_dataloader or cfg.reset_meters or cfg.reset_optimizer):
            signals.watch()  # it may validate
            losses, over = catching_up.catch_up(trainer, extra_state)
            trainer.over = (losses, over) if over else None
        if process_state.between_epochs(extra_state) and metrics.get_meters("train"):
            metrics.reset_meters("train")
    return extra_state, epoch_itr


def _train(original, cfg, trainer, task, epoch_itr):
    """One epoch."""
    over = getattr(trainer, "over", None)
    ended = True
    try:
        if over is None:
            signals.watch()
            over = original(cfg, trainer, task, epoch_itr)
        last = epoch_itr.next_epoch_idx > (cfg.optimization.max_epoch or math.inf)
        ended = over[1] or last or trainer.get_lr() <= cfg.optimization.stop_min_lr
        if ended:
            saving.check(trainer)
        return over
    except Diverged:
        ended = False  # it may be set back
        raise
    finally:
        if ended:
            signals.unwatch()
            holding.release()


def _validate_and_save(original, cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch):
    """After each update."""
    try:
        _stop_if_told(trainer)
        return original(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
    except Stopped:
        pass  # and no more: what is raised below has nothing to do with it
    _save_and_exit(trainer, epoch_itr, end_of_epoch)


def _valid_step(original, trainer, *args, **kwargs):
    _stop_if_told(trainer)
    return original(trainer, *args, **kwargs)


def _stop_if_told(trainer) -> None:
    if signals.watching() and agreement.largest(signals.received(), trainer.device):
        raise Stopped


def _save_and_exit(trainer, epoch_itr, end_of_epoch: bool) -> None:
    kind, cfg = agreement.largest(signals.received(), trainer.device), copy.deepcopy(trainer.cfg.checkpoint)
    name, updates = signal.Signals(kind).name, trainer.get_num_updates()
    cfg.no_epoch_checkpoints, cfg.no_last_checkpoints, cfg.save_interval_updates = True, False, 0
    for rule in retention.RULES:
        setattr(cfg, rule, -1)
    with _unfinished(end_of_epoch):
        checkpoint_utils.save_checkpoint(cfg, trainer, epoch_itr, None)
        try:
            saving.check(trainer)
        except UserError as error:
            raise UserError(f"stopped by {name} after update {updates}, and {error}") from None
    agreement.meet()  # torchrun ends them all as soon as one does
    path = Path(cfg.save_dir) / f"{atomic.LAST}{trainer.checkpoint_suffix}.pt"
    saved = "nothing is saved (--no-save)" if cfg.no_save else f"{path} is saved, the same command goes on from it"
    log.info(f"stopped by {name} after update {updates}: {saved}")
    signals.answer(kind)
    raise SystemExit(128 + kind)


@contextmanager
def _unfinished(end_of_epoch: bool):
    process_state.unfinished = end_of_epoch
    try:
        yield
    finally:
        process_state.unfinished = None
