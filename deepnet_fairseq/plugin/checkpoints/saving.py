"""Parts of a save: refuse settings by which none succeeds, move the state to the CPU, say what a failed save leaves."""

from __future__ import annotations

from pathlib import Path

from fairseq import utils
from torch import Tensor

from ...errors import UserError
from . import atomic, reading

# Settings in the config's section for checkpoints by which fairseq removes older checkpoints. Run._save_and_exit
# (plugin/run.py) switches them off.
RULES_OF_OLD_ONES = ("keep_interval_updates", "keep_last_epochs", "keep_best_checkpoints")


def check_settings(cfg) -> None:
    """Raise a UserError for settings by which no save succeeds; cfg: the config's section for checkpoints."""
    if cfg.write_checkpoints_asynchronously:  # the flag needs iopath, with which fairseq writes no checkpoint_last.pt
        raise UserError("--write-checkpoints-asynchronously", "not supported; drop it")
    suffix = cfg.checkpoint_suffix or ""
    if "_" in suffix and cfg.keep_best_checkpoints > 0:
        # fairseq takes what stands behind the last _ of the file's name for the score, and would raise a ValueError
        way_out = f"take one without _, such as {suffix.replace('_', '.')}"
        raise UserError(f"--checkpoint-suffix {suffix}", f"not with --keep-best-checkpoints; {way_out}")


def on_cpu(state: dict) -> dict:
    """Return a state (nested dicts and lists) with every tensor on the CPU, in float32 if it is in half precision.

    Tensors of the same memory and shape, as tied embeddings, still share their memory, so that torch.save writes them
    once.
    """
    moved: dict[tuple, Tensor] = {}  # address, dtype, shape and stride of a tensor -> its copy

    def move(tensor: Tensor) -> Tensor:
        """Return the tensor's copy, the same one for tensors that are the same."""
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in moved:
            cpu = tensor.detach().cpu()
            moved[key] = cpu.float() if cpu.dtype in reading.HALF else cpu
        return moved[key]

    return utils.apply_to_sample(move, state)


def describe_resume(cfg) -> str:
    """Return a clause for log lines: which checkpoint a resume would start from, if none of the files is damaged.

    cfg: the config's section for checkpoints.
    """
    folder = Path(cfg.save_dir)
    suffix = cfg.checkpoint_suffix or ""
    last = folder / f"{atomic.LAST}{suffix}.pt"
    candidates = [last] if last.is_file() else reading.all_but_last(folder, suffix)
    if not candidates:
        return "there is nothing to resume from yet"
    return f"a resume would start from {candidates[0]}"
