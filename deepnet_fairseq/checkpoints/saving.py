"""The saves of a training: one that fails is a line in the log, not the end of the run."""

from __future__ import annotations

import copy
import logging
import os
from functools import partial
from pathlib import Path

from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer

from ..compat.wrapping import wrap
from ..distributed import agreement
from ..errors import UserError
from . import atomic, background, choice, holding, retention
from .atomic import SaveError

log = logging.getLogger(__name__)
_in_background = False
_failure: SaveError | None = None  # of the latest save


def install() -> None:
    """Patches how fairseq's checkpoints are written; may be called again."""
    wrap(checkpoint_utils, "torch_persistent_save", _persist)
    wrap(checkpoint_utils, "save_checkpoint", _save)
    wrap(Trainer, "save_checkpoint", _lose_no_error)


def begin(original, cfg) -> None:
    """fairseq's add_defaults, the first that main does with a config: from here on the folder is this training's.

    --write-checkpoints-asynchronously is ours. UserError, before anything is written, if the folder is another's.
    """
    global _in_background, _failure
    original(cfg)
    if not cfg.checkpoint.no_save:
        holding.take(Path(cfg.checkpoint.save_dir))
    _in_background, _failure = bool(cfg.checkpoint.write_checkpoints_asynchronously), None
    cfg.checkpoint.write_checkpoints_asynchronously = False


def check(trainer) -> None:
    """Waits for what is still being written; UserError on all ranks if the latest save failed."""
    background.wait()
    failure = agreement.from_first(lambda: _failure and f"the last save failed: {_failure}; {_left(trainer.cfg)}")
    if failure:
        raise UserError(failure)


def _persist(original, obj, filename, async_write: bool = False) -> None:
    if isinstance(filename, (str, Path)) and PathManager.supports_rename(str(filename)):
        background.do(lambda: atomic.save(obj, filename))
    else:
        original(obj, filename)


def _save(original, cfg, trainer, epoch_itr, val_loss):
    global _failure
    background.wait()
    if _in_background and not trainer.cfg.distributed_training.use_sharded_state:  # whose ranks write themselves
        return _save_in_background(original, cfg, trainer, epoch_itr, val_loss)
    try:
        path = original(cfg, trainer, epoch_itr, val_loss)
    except (SaveError, OSError) as error:
        return _failed(cfg, error)
    _failure = None
    return path


def _save_in_background(original, cfg, trainer, epoch_itr, val_loss):
    """Old checkpoints go when the new one is whole."""
    keep_all = copy.deepcopy(cfg)
    for rule in retention.RULES:
        if rule != "keep_best_checkpoints":  # which says too that the best are saved under names of their own
            setattr(keep_all, rule, -1)
    mid_epoch, suffix = not epoch_itr.end_of_epoch(), trainer.checkpoint_suffix
    try:
        with background.held() as jobs:
            path = original(keep_all, trainer, epoch_itr, val_loss)
    except OSError as error:
        return _failed(cfg, error)
    if jobs:
        jobs += [partial(retention.remove, cfg, suffix, mid_epoch), partial(_succeeded, path)]
        background.start(jobs, partial(_failed, cfg))
    return path


def _succeeded(path: str) -> None:
    global _failure
    _failure = None
    log.info(f"{path}: written in the background")


def _failed(cfg, error: Exception) -> None:
    global _failure
    _failure = (
        error if isinstance(error, SaveError) else SaveError(getattr(error, "filename", None) or cfg.save_dir, error)
    )
    log.warning(f"{_failure}; the training goes on, {_left(cfg)}")


def _left(cfg) -> str:
    """What a resume would find. cfg: the whole config, or its part for checkpoints."""
    cfg = getattr(cfg, "checkpoint", cfg)
    folder, suffix = Path(cfg.save_dir), cfg.checkpoint_suffix or ""
    last = folder / f"{atomic.LAST}{suffix}.pt"
    there = [last] if last.is_file() else choice.earlier(folder, suffix)
    return f"a resume would start from {there[0]}" if there else "there is nothing to resume from yet"


def _lose_no_error(original, trainer, filename, extra_state):
    """crash.pt is saved while an error is on its way to the user: that it cannot be is not to hide the error."""
    try:
        return original(trainer, filename, extra_state)
    except SaveError as error:
        if os.path.basename(filename) != "crash.pt":
            raise
        log.warning(str(error))
