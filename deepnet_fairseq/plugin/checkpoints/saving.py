"""Save a training's checkpoints; a save that fails is a warning in the log, not the end of the run.

A training locks its --save-dir, because a second training there would replace and remove the first one's checkpoints.
The lock is filelock's, on a file in the folder; the system frees it when the process ends in any way.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from fairseq import utils
from filelock import FileLock, Timeout
from torch import Tensor

from ...errors import UserError
from ..distributed import agreement
from ..divergence import WEIGHTS, Diverged, all_finite
from . import atomic, epoch_weights, reading
from .atomic import SaveError

log = logging.getLogger(__name__)
RULES = ("keep_interval_updates", "keep_last_epochs", "keep_best_checkpoints")
LOCK = ".lock"
GRACE = 5.0  # seconds that a killed process may take to exit
_lock: FileLock | None = None  # of this process
_error: SaveError | None = None  # of the latest save


def begin(cfg) -> None:
    """Lock the folder for this training; cfg: the config's section for checkpoints.

    Raises a UserError, before anything is written, if another training holds the folder.
    """
    global _error
    if cfg.write_checkpoints_asynchronously:  # needs iopath, with which fairseq writes no checkpoint_last.pt
        raise UserError("--write-checkpoints-asynchronously: not supported; drop it")
    suffix = cfg.checkpoint_suffix or ""
    if "_" in suffix and cfg.keep_best_checkpoints > 0:  # a ValueError: fairseq reads the score behind the last _
        way_out = f"take one without _, such as {suffix.replace('_', '.')}"
        raise UserError(f"--checkpoint-suffix {suffix}: not with --keep-best-checkpoints; {way_out}")
    if not cfg.no_save:
        take(Path(cfg.save_dir))
    _error = None


def take(folder: Path) -> None:
    """Lock `folder` on rank 0 until `release`; raise a UserError on all ranks if another training holds it.

    The folder is made. A second call for the same folder changes nothing, one for another folder frees the first.
    """
    agreement.broadcast_from_first(lambda: _take(folder.absolute()))


def release() -> None:
    """Free the folder for the next training."""
    global _lock
    if _lock is not None:
        _lock.release()
        _lock = None


def _take(folder: Path) -> None:
    global _lock
    file = folder / LOCK
    if _lock is not None and Path(_lock.lock_file) == file:
        return
    release()
    lock = FileLock(file)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=GRACE)
    except Timeout:
        holder = ""
        with suppress(OSError):
            holder = f" ({file.read_text().strip()[:100]})"
        problem = f"{folder}: another training holds it{holder}; wait for its end, or give another --save-dir"
        raise UserError(problem) from None
    except (OSError, NotImplementedError):  # read-only, or a disk without locks; fairseq says why it cannot be written
        return
    _lock = lock
    with suppress(OSError):
        file.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")


def check(trainer) -> None:
    """Raise a UserError on all ranks if the latest save failed."""
    failure = agreement.broadcast_from_first(lambda: _error and f"the last save failed: {_error}; {_left(trainer.cfg)}")
    if failure:
        raise UserError(failure)


def on_cpu(state: dict) -> dict:
    """Return nested containers of tensors with every tensor on the CPU, in float32 if it is in half precision.

    Tied weights stay tied: fairseq would write a shared embedding once for each of its names.
    """
    moved: dict[tuple, Tensor] = {}

    def move(tensor: Tensor) -> Tensor:
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in moved:
            cpu = tensor.detach().cpu()
            moved[key] = cpu.float() if cpu.dtype in reading.HALF else cpu
        return moved[key]

    return utils.apply_to_sample(move, state)


def save_checkpoint(original, cfg, trainer, epoch_itr, val_loss):
    """Save a checkpoint; if that fails, write a warning and let the training go on.

    Raises Diverged if a weight is not finite: such a checkpoint is useless, and must not replace a good one.
    """
    global _error
    if not cfg.no_save and not all(agreement.all_gather(all_finite(trainer.get_model()))):
        raise Diverged(trainer.get_num_updates(), WEIGHTS, trainer.samples)
    save = functools.partial(_save_last_update_too, original)
    try:
        path = epoch_weights.save_checkpoint(save, cfg, trainer, epoch_itr, val_loss)
    except (SaveError, OSError) as error:
        path = getattr(error, "filename", None) or cfg.save_dir
        _error = error if isinstance(error, SaveError) else SaveError(path, error)
        log.warning(f"{_error}; the training goes on, {_left(cfg)}")
        return None
    _error = None
    return path


def _save_last_update_too(original, cfg, trainer, epoch_itr, val_loss):
    """Call fairseq's save_checkpoint so that --save-interval-updates holds for the last update of an epoch too.

    fairseq saves the update or the epoch. Here it sees an epoch that goes on, and saves checkpoint_E_U; if the epoch's
    own checkpoint is wanted, the same file gets that name too, before fairseq removes old ones.
    """
    updates, interval = trainer.get_num_updates(), cfg.save_interval_updates
    if not epoch_itr.end_of_epoch() or interval <= 0 or updates % interval:
        return original(cfg, trainer, epoch_itr, val_loss)
    if updates < trainer.cfg.dataset.validate_after_updates:  # as within an epoch
        return original(cfg, trainer, epoch_itr, val_loss)

    epoch = epoch_itr.epoch
    if not cfg.no_epoch_checkpoints and epoch % cfg.save_interval == 0:
        trainer.second_name = os.path.join(cfg.save_dir, f"checkpoint{epoch}{trainer.checkpoint_suffix}.pt")
    within = SimpleNamespace(epoch=epoch, end_of_epoch=lambda: False, state_dict=epoch_itr.state_dict)
    try:
        return original(cfg, trainer, within, val_loss)
    finally:
        trainer.second_name = None


def _left(cfg) -> str:
    """Describe the checkpoint that a resume would start from. cfg: the whole config, or its section for checkpoints."""
    cfg = getattr(cfg, "checkpoint", cfg)
    folder, suffix = Path(cfg.save_dir), cfg.checkpoint_suffix or ""
    last = folder / f"{atomic.LAST}{suffix}.pt"
    there = [last] if last.is_file() else reading.earlier(folder, suffix)
    return f"a resume would start from {there[0]}" if there else "there is nothing to resume from yet"
