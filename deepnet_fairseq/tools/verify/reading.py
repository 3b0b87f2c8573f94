"""Read checkpoints, saved state dicts and safetensors for `deepnet verify`, without running code in them."""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import UserError

WRAPPERS = ("model", "state_dict", "model_state_dict", "module")  # where checkpoints keep their weights


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], int | None]:
    """Return weights by name, config and number of updates (None: unknown) of a file.

    UserError, naming the file, for one that holds no weights.
    """
    from ...plugin.checkpoints.reading import allow_plain_data, explained

    if not path.exists():
        raise UserError(f"{path}: no such file")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return explained(load_file, str(path)), {}, None
    allow_plain_data()
    mapped = zipfile.is_zipfile(path)  # torch's format since 1.6 need not be read as a whole
    content = explained(torch.load, str(path), map_location="cpu", weights_only=True, mmap=mapped)
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds a {type(content).__name__}, not weights by name; save its state_dict()")
    wrapper = next((name for name in WRAPPERS if isinstance(content.get(name), dict)), None)
    weights = {name: t for name, t in (content[wrapper] if wrapper else content).items() if torch.is_tensor(t)}
    if not weights:
        raise UserError(f"{path}: holds no weights by name; save the model's state_dict()")
    cfg, history = content.get("cfg"), content.get("optimizer_history")
    said: Any = (cfg.get("model") if isinstance(cfg, dict) else None) or content.get("args")
    said = vars(said) if isinstance(said, argparse.Namespace) else said
    last = history[-1] if isinstance(history, list) and history else {"num_updates": content.get("global_step")}
    updates = last.get("num_updates") if isinstance(last, dict) else None
    return weights, said if isinstance(said, dict) else {}, updates if isinstance(updates, int) else None
