"""The saves of a training: one that fails is a line in the log, not the end of the run.

`--write-checkpoints-asynchronously`: files are written while the training goes on, one save at a time, in order, and
what they replace goes when they are whole. fairseq's flag of that name needs the package iopath, and then writes no
copies: checkpoint_last.pt would never be.
"""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from fairseq.checkpoint_utils import checkpoint_paths
from fairseq.file_io import PathManager

from ...errors import UserError
from ..distributed import agreement
from . import atomic, holding, integrity
from .atomic import SaveError

log = logging.getLogger(__name__)
RULES = ("keep_interval_updates", "keep_last_epochs", "keep_best_checkpoints")
Job = Callable[[], object]
_in_background = False
_failure: SaveError | None = None  # of the latest save
_held: list[Job] | None = None  # of the save that is being put together for the background
_thread: threading.Thread | None = None
_said: dict[str, int] = {}  # folder -> bytes that the log has told


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
    wait()
    failure = agreement.from_first(lambda: _failure and f"the last save failed: {_failure}; {_left(trainer.cfg)}")
    if failure:
        raise UserError(failure)


def in_background() -> bool:
    """Is a save being put together for the background? Then what it holds must not change with the training."""
    return _held is not None


def wait() -> None:
    """Returns when everything is written."""
    global _thread
    if _thread is not None:
        _thread.join()
        _thread = None


def in_turn(job: Job) -> None:
    """Now, or, while a save is being put together for the background, when its turn comes."""
    if _held is None:
        job()
    else:
        _held.append(job)


def write_whole(original, obj, filename, async_write: bool = False) -> None:
    """In place of fairseq's, which tries three times into the same open file."""
    if PathManager.supports_rename(str(filename)):
        in_turn(lambda: atomic.save(obj, filename))
    else:
        original(obj, filename)


def copy_whole(original, src_path: str, dst_path: str, overwrite: bool = False):
    """fairseq copies the file of a save over others, checkpoint_last.pt among them: killed there, a run has lost it."""
    if not PathManager.supports_rename(dst_path):
        return original(src_path, dst_path, overwrite=overwrite)
    in_turn(lambda: atomic.copy(src_path, dst_path))
    return dst_path


def save_or_warn(original, cfg, trainer, epoch_itr, val_loss):
    """Now, or put together for a thread."""
    global _failure, _held, _thread
    wait()
    rules = cfg
    if _in_background:
        remove = partial(remove_old, rules, trainer.checkpoint_suffix, not epoch_itr.end_of_epoch())
        cfg, _held = copy.deepcopy(cfg), []
        for rule in RULES[:2]:  # the third says too that the best are saved under names of their own
            setattr(cfg, rule, -1)
    jobs = _held
    try:
        path = original(cfg, trainer, epoch_itr, val_loss)
    except (SaveError, OSError) as error:
        return _failed(rules, error)
    finally:
        _held = None
    if jobs is None:
        _failure = None
        _say_size(cfg)
    elif jobs:
        jobs.append(remove)  # when the new one is whole
        _thread = threading.Thread(target=_work, args=(jobs, rules, path), name="checkpoint")
        _thread.start()
    return path


def _work(jobs: list[Job], cfg, path: str) -> None:
    """Until one of them raises; the ones before are over."""
    global _failure
    try:
        while jobs:
            jobs.pop(0)()  # and lets go of the state it held
    except Exception as error:
        _failed(cfg, error)
    else:
        _failure = None
        log.info(f"{path}: written in the background")
        _say_size(cfg)


def _say_size(cfg) -> None:
    """Where it has grown: what the disk must have room for."""
    most = atomic.most.get(Path(cfg.save_dir), 0)
    if most > _said.get(cfg.save_dir, 0):
        _said[cfg.save_dir] = most
        log.info(f"{cfg.save_dir}: checkpoints have taken {most} bytes")


def remove_old(cfg, suffix: str, mid_epoch: bool) -> None:
    """Removes what --keep-interval-updates, --keep-last-epochs and --keep-best-checkpoints keep no longer.

    cfg: fairseq's config of checkpoints; suffix: of this process's files; mid_epoch: was the save one between two ends
    of an epoch?
    """
    gone = []
    if mid_epoch and cfg.keep_interval_updates > 0:
        found = checkpoint_paths(cfg.save_dir, rf"checkpoint_\d+_(\d+){suffix}\.pt", keep_match=True)
        every = cfg.keep_interval_updates_pattern
        gone += [path for path, update in found if every == -1 or update % every != 0][cfg.keep_interval_updates :]
    if cfg.keep_last_epochs > 0:
        gone += checkpoint_paths(cfg.save_dir, rf"checkpoint(\d+){suffix}\.pt")[cfg.keep_last_epochs :]
    if cfg.keep_best_checkpoints > 0:
        best = rf"checkpoint\.best_{cfg.best_checkpoint_metric}_(\d+\.?\d*){suffix}\.pt"
        ranked = checkpoint_paths(cfg.save_dir, best)
        gone += ranked[:: 1 if cfg.maximize_best_checkpoint_metric else -1][cfg.keep_best_checkpoints :]
    for path in gone:
        with suppress(OSError):
            os.remove(path)


def _failed(cfg, error: Exception) -> None:
    global _failure
    path = getattr(error, "filename", None) or cfg.save_dir
    _failure = error if isinstance(error, SaveError) else SaveError(path, error)
    log.warning(f"{_failure}; the training goes on, {_left(cfg)}")


def _left(cfg) -> str:
    """What a resume would find. cfg: the whole config, or its part for checkpoints."""
    cfg = getattr(cfg, "checkpoint", cfg)
    folder, suffix = Path(cfg.save_dir), cfg.checkpoint_suffix or ""
    last = folder / f"{atomic.LAST}{suffix}.pt"
    there = [last] if last.is_file() else integrity.earlier(folder, suffix)
    return f"a resume would start from {there[0]}" if there else "there is nothing to resume from yet"


def lose_no_error(original, trainer, filename, extra_state):
    """crash.pt is saved while an error is on its way to the user: that it cannot be is not to hide the error."""
    try:
        return original(trainer, filename, extra_state)
    except SaveError as error:
        if os.path.basename(filename) != "crash.pt":
            raise
        log.warning(str(error))
