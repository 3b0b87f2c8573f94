"""Read checkpoints, saved state dicts, safetensors and files of names for `deepnet verify`; no code in them is run."""

from __future__ import annotations

import argparse
import re
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...data.lines import STDIN, read_lines
from ...errors import UserError
from ...files import read_object

WRAPPERS = ("model", "state_dict", "model_state_dict", "module")  # where checkpoints keep their weights
SHORTCUT = re.compile(r"((deepnorm|residual|encoder|decoder)_)*alpha|(residual|skip|shortcut)_(scale|factor|weight)")


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], int | None]:
    """Return weights by name, config and number of updates (None: unknown) of a file or a Hugging Face folder.

    UserError, naming the file, for one that holds no weights.
    """
    from ...plugin.checkpoints.reading import allow_plain_data, explained

    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    if path.is_dir():
        return _folder(path), {}, None
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
    config: Any = (cfg.get("model") if isinstance(cfg, dict) else None) or content.get("args")
    config = vars(config) if isinstance(config, argparse.Namespace) else config
    last = history[-1] if isinstance(history, list) and history else {"num_updates": content.get("global_step")}
    updates = last.get("num_updates") if isinstance(last, dict) else None
    return weights, config if isinstance(config, dict) else {}, updates if isinstance(updates, int) else None


def _folder(path: Path) -> dict[str, Tensor]:
    """Return the weights of a Hugging Face folder, with its config's factors of shortcuts as if they were buffers."""
    weights, config = path / "model.safetensors", path / "config.json"
    if not weights.is_file():
        raise UserError(f"{path}: holds no {weights.name}; name the file of weights itself")
    cfg = read_object(config, "download it again, or remove it") if config.exists() else {}
    numbers = {name: value for name, value in cfg.items() if type(value) in (int, float) and SHORTCUT.fullmatch(name)}
    return read(weights)[0] | {f"{config.name}.{name}": torch.tensor(float(value)) for name, value in numbers.items()}


def read_names(path: Path) -> Callable[[str], str]:
    """Return the renaming of weights that a TOML file gives: regular expressions, and what stands in their place.

    They are replaced wherever they occur in a name, in the file's order. UserError, naming the file, for any other.
    """
    if path != STDIN and not path.exists():
        raise UserError(f"--names {path}: no such file")
    try:
        rules = tomllib.loads("\n".join(read_lines(path)))
    except ValueError as error:
        raise UserError(f"--names {path}: is no TOML ({error}); docs/verify.md has an example") from error
    for pattern, name in rules.items():
        try:
            re.sub(pattern, name, "")
        except (re.error, IndexError, TypeError) as error:
            problem = f"{pattern} = {name!r}: {error}; docs/verify.md has an example"
            raise UserError(f"--names {path}: {problem}") from error

    def rename(name: str) -> str:
        for pattern, fairseqs in rules.items():
            name = re.sub(pattern, fairseqs, name)
        return name

    return rename
