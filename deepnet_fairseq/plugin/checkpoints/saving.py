"""The saves of a training: one that fails is a line in the log, not the end of the run."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from fairseq.file_io import PathManager

from ...errors import UserError
from ..distributed import agreement
from . import atomic, holding, integrity
from .atomic import SaveError

log = logging.getLogger(__name__)
RULES = ("keep_interval_updates", "keep_last_epochs", "keep_best_checkpoints")
_failure: SaveError | None = None  # of the latest save
_said: dict[str, int] = {}  # folder -> the size in bytes that the log has told


def begin(original, cfg) -> None:
    """Take the folder for this training, in the first call that fairseq-train's main makes with a config.

    UserError, before anything is written, if the folder is another training's.
    """
    global _failure
    original(cfg)
    if cfg.checkpoint.write_checkpoints_asynchronously:  # needs iopath, and then fairseq writes no checkpoint_last.pt
        raise UserError("--write-checkpoints-asynchronously: not supported; drop it")
    if not cfg.checkpoint.no_save:
        holding.take(Path(cfg.checkpoint.save_dir))
    _failure = None


def check(trainer) -> None:
    """Raise a UserError on all ranks if the latest save failed."""
    failure = agreement.from_first(lambda: _failure and f"the last save failed: {_failure}; {_left(trainer.cfg)}")
    if failure:
        raise UserError(failure)


def write_whole(original, obj, filename, async_write: bool = False) -> None:
    """Write a file in place of fairseq, which tries three times into the same open file."""
    if PathManager.supports_rename(str(filename)):
        atomic.save(obj, filename)
    else:
        original(obj, filename)


def copy_whole(original, src_path: str, dst_path: str, overwrite: bool = False):
    """Copy a checkpoint; fairseq copies over checkpoint_last.pt, which a run that is killed meanwhile has lost."""
    if not PathManager.supports_rename(dst_path):
        return original(src_path, dst_path, overwrite=overwrite)
    atomic.copy(src_path, dst_path)
    return dst_path


def save_or_warn(original, cfg, trainer, epoch_itr, val_loss):
    """Save a checkpoint; if that fails, write a warning and let the training go on."""
    global _failure
    try:
        path = original(cfg, trainer, epoch_itr, val_loss)
    except (SaveError, OSError) as error:
        path = getattr(error, "filename", None) or cfg.save_dir
        _failure = error if isinstance(error, SaveError) else SaveError(path, error)
        log.warning(f"{_failure}; the training goes on, {_left(cfg)}")
        return None
    _failure = None
    most = atomic.most.get(Path(cfg.save_dir), 0)
    if most > _said.get(cfg.save_dir, 0):  # what the disk must have room for
        _said[cfg.save_dir] = most
        log.info(f"{cfg.save_dir}: checkpoints have taken {most} bytes")
    return path


def _left(cfg) -> str:
    """Say what a resume would find. cfg: the whole config, or its part for checkpoints."""
    cfg = getattr(cfg, "checkpoint", cfg)
    folder, suffix = Path(cfg.save_dir), cfg.checkpoint_suffix or ""
    last = folder / f"{atomic.LAST}{suffix}.pt"
    there = [last] if last.is_file() else integrity.earlier(folder, suffix)
    return f"a resume would start from {there[0]}" if there else "there is nothing to resume from yet"


def lose_no_error(original, trainer, filename, extra_state):
    """Save a checkpoint; if crash.pt cannot be saved, let the error that caused it reach the user."""
    try:
        return original(trainer, filename, extra_state)
    except SaveError as error:
        if os.path.basename(filename) != "crash.pt":
            raise
        log.warning(str(error))
