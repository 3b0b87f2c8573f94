"""What a resumed run measures its model update against: F(x, theta_0), kept beside its checkpoints."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import torch
from torch import Tensor, nn

from ..atomic_output import save
from .model_update import outputs

REFERENCE = "probes.reference.pt"
logger = logging.getLogger(__name__)


def reference(model: nn.Module, net_input: dict, path: Path, update: int, write: bool) -> dict[str, Tensor]:
    """F(x, theta_0) on the held batch: what the model gives now at update 0, else what `path` holds.

    A resumed run that finds no such file, or one of another batch, counts from where it is, and says so.
    """
    held = net_input["src_tokens"]
    if update:
        kept = _read(path)
        if kept is not None and torch.equal(kept["src_tokens"], held.cpu()):
            return {name: value.to(held.device) for name, value in kept["outputs"].items()}
        logger.warning(f"{path}: does not hold the outputs of update 0; model_update counts from update {update}")
    now = outputs(model, net_input)
    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
        cpu = {name: value.cpu() for name, value in now.items()}
        save({"src_tokens": held.cpu(), "update": update, "outputs": cpu}, path)
    return now


def _read(path: Path) -> dict | None:
    if not path.is_file():
        return None
    try:
        kept = torch.load(path, map_location="cpu", weights_only=True)
        return kept if kept.keys() >= {"src_tokens", "outputs"} else None
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, IndexError, ValueError, AttributeError):
        return None  # not what we wrote
