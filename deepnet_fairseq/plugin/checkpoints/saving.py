"""Save a training's checkpoints; a save that fails is a warning in the log, not the end of the run."""

from __future__ import annotations

import logging
from pathlib import Path

from fairseq import utils
from torch import Tensor

from ...errors import UserError
from ..distributed import agreement
from ..divergence import WEIGHTS, Diverged
from ..divergence.search import all_finite
from . import atomic, epoch_weights, holding, integrity
from .atomic import SaveError
from .reading import HALF

log = logging.getLogger(__name__)
RULES = ("keep_interval_updates", "keep_last_epochs", "keep_best_checkpoints")
_failure: SaveError | None = None  # of the latest save


def begin(cfg) -> None:
    """Lock the folder for this training; cfg: the config's section for checkpoints.

    Raises a UserError, before anything is written, if another training holds the folder.
    """
    global _failure
    if cfg.write_checkpoints_asynchronously:  # needs iopath, and then fairseq writes no checkpoint_last.pt
        raise UserError("--write-checkpoints-asynchronously: not supported; drop it")
    if not cfg.no_save:
        holding.take(Path(cfg.save_dir))
    _failure = None


def check(trainer) -> None:
    """Raise a UserError on all ranks if the latest save failed."""
    failure = agreement.from_first(lambda: _failure and f"the last save failed: {_failure}; {_left(trainer.cfg)}")
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
            moved[key] = cpu.float() if cpu.dtype in HALF else cpu
        return moved[key]

    return utils.apply_to_sample(move, state)


def save_checkpoint(original, cfg, trainer, epoch_itr, val_loss):
    """Save a checkpoint; if that fails, write a warning and let the training go on.

    Diverged if a weight is not finite: nobody can train on with it, and it must not replace one that is.
    """
    global _failure
    if not cfg.no_save and not all(agreement.gathered(all_finite(trainer.get_model()))):
        raise Diverged(trainer.get_num_updates(), WEIGHTS, trainer.samples)
    try:
        path = epoch_weights.save_checkpoint(original, cfg, trainer, epoch_itr, val_loss)
    except (SaveError, OSError) as error:
        path = getattr(error, "filename", None) or cfg.save_dir
        _failure = error if isinstance(error, SaveError) else SaveError(path, error)
        log.warning(f"{_failure}; the training goes on, {_left(cfg)}")
        return None
    _failure = None
    return path


def _left(cfg) -> str:
    """Describe the checkpoint that a resume would start from. cfg: the whole config, or its section for checkpoints."""
    cfg = getattr(cfg, "checkpoint", cfg)
    folder, suffix = Path(cfg.save_dir), cfg.checkpoint_suffix or ""
    last = folder / f"{atomic.LAST}{suffix}.pt"
    there = [last] if last.is_file() else integrity.earlier(folder, suffix)
    return f"a resume would start from {there[0]}" if there else "there is nothing to resume from yet"
