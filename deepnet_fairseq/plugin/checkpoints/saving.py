"""Say what a save takes from the trainer's state, which settings it refuses, and what is left when it fails."""

from __future__ import annotations

from pathlib import Path

from fairseq import utils
from torch import Tensor

from ...errors import UserError
from . import atomic, reading

# settings by which fairseq removes older checkpoints
RULES_OF_OLD_ONES = ("keep_interval_updates", "keep_last_epochs", "keep_best_checkpoints")


def check_settings(cfg) -> None:
    """Raise a UserError for settings by which no save succeeds; cfg: the config's section for checkpoints."""
    if cfg.write_checkpoints_asynchronously:  # needs iopath, with which fairseq writes no checkpoint_last.pt
        raise UserError("--write-checkpoints-asynchronously: not supported; drop it")
    suffix = cfg.checkpoint_suffix or ""
    if "_" in suffix and cfg.keep_best_checkpoints > 0:  # a ValueError: fairseq reads the score behind the last _
        way_out = f"take one without _, such as {suffix.replace('_', '.')}"
        raise UserError(f"--checkpoint-suffix {suffix}: not with --keep-best-checkpoints; {way_out}")


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


def left(cfg) -> str:
    """Describe the checkpoint that a resume would start from. cfg: the config's section for checkpoints."""
    folder, suffix = Path(cfg.save_dir), cfg.checkpoint_suffix or ""
    last = folder / f"{atomic.LAST}{suffix}.pt"
    there = [last] if last.is_file() else reading.earlier(folder, suffix)
    return f"a resume would start from {there[0]}" if there else "there is nothing to resume from yet"
