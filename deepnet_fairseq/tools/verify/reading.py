"""Read what `deepnet verify` takes: files and folders of weights, and files with rules that rename weights.

No code in them is run.
"""

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
from ...files import read_json_object

WRAPPERS = ("model", "state_dict", "model_state_dict", "module")  # keys under which checkpoints keep their state dict
# names of entries in a Hugging Face config.json that are the factor of a shortcut
SHORTCUT = re.compile(r"((deepnorm|residual|encoder|decoder)_)*alpha|(residual|skip|shortcut)_(scale|factor|weight)")


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], int | None]:
    """Read a checkpoint, a saved state dict, a .safetensors file or a Hugging Face folder.

    Return (weights by name, {field: value} of the model's config, number of updates that its optimiser has made). The
    config is empty and the number None where the file does not tell. UserError, naming the file, for one that holds no
    weights.
    """
    from ...plugin.checkpoints.reading import allow_plain_data, load_or_explain

    if not path.exists():
        raise UserError(path, "no such file or folder")
    if path.is_dir():
        return _folder(path), {}, None
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_or_explain(load_file, str(path)), {}, None

    allow_plain_data()  # of the classes in fairseq's checkpoints
    can_map = zipfile.is_zipfile(path)  # torch's format since 1.6, of which mmap reads only what is used
    content = load_or_explain(torch.load, str(path), map_location="cpu", weights_only=True, mmap=can_map)
    if not isinstance(content, dict):
        raise UserError(path, f"holds a {type(content).__name__}, not weights by name; save its state_dict()")

    # the state dict, under the first of these keys that has a dict, or the whole content
    wrapper = next((name for name in WRAPPERS if isinstance(content.get(name), dict)), None)
    state = content[wrapper] if wrapper else content
    weights = {name: tensor for name, tensor in state.items() if torch.is_tensor(tensor)}
    if not weights:
        raise UserError(path, "holds no weights by name; save the model's state_dict()")
    return weights, _config(content), _updates(content)


def _config(content: dict) -> dict[str, Any]:
    """Return {field: value} of the model's config in a checkpoint; empty for one that is not fairseq's.

    content: what torch.load returns. fairseq keeps the config in the section "model" of "cfg"; older versions keep one
    Namespace of all flags in "args", without sections.
    """
    cfg = content.get("cfg")
    config: Any = cfg.get("model") if isinstance(cfg, dict) else None
    config = config or content.get("args")
    if isinstance(config, argparse.Namespace):
        config = vars(config)
    return config if isinstance(config, dict) else {}


def _updates(content: dict) -> int | None:
    """Return the number of updates that a checkpoint of fairseq's or of Lightning's states; None for others.

    content: what torch.load returns.
    """
    history = content.get("optimizer_history")
    if isinstance(history, list) and history:  # fairseq's
        last = history[-1]
        updates = last.get("num_updates") if isinstance(last, dict) else None
    else:
        updates = content.get("global_step")  # Lightning's
    return updates if isinstance(updates, int) else None


def _folder(path: Path) -> dict[str, Tensor]:
    """Return the weights of a Hugging Face folder by name, and with them the factors of shortcuts in its config.json.

    A factor becomes a tensor () with the name "config.json.NAME", as if the model had it as a buffer. UserError, naming
    the folder or the file, for a folder without weights, and for a config that is no JSON object.
    """
    weights_file = path / "model.safetensors"
    config_file = path / "config.json"
    if not weights_file.is_file():
        raise UserError(path, f"holds no {weights_file.name}; name the file of weights itself")

    config = read_json_object(config_file, "download it again, or remove it") if config_file.exists() else {}
    weights, _, _ = read_weights(weights_file)
    factors = {}
    for name, value in config.items():
        if type(value) in (int, float) and SHORTCUT.fullmatch(name):  # type(), because True is an instance of int
            factors[f"{config_file.name}.{name}"] = torch.tensor(float(value))
    return weights | factors


def read_names(path: Path) -> Callable[[str], str]:
    """Return a function that renames a weight by the rules of a TOML file: regular expression = replacement.

    path: of the file, or STDIN. The rules apply one after the other, in the file's order, wherever they match in a
    name. UserError, naming the file, for one that is missing or holds anything else.
    """
    if path != STDIN and not path.exists():
        raise UserError(f"--names {path}", "no such file")
    text = "\n".join(read_lines(path))
    try:
        rules = tomllib.loads(text)
    except ValueError as error:
        raise UserError(f"--names {path}", f"is no TOML ({error}); docs/verify.md has an example") from error

    for pattern, replacement in rules.items():
        try:
            re.sub(pattern, replacement, "")  # on an empty name, only to raise what a wrong rule raises
        except (re.error, IndexError, TypeError, OverflowError) as error:
            problem = f"{pattern} = {replacement!r}: {error}; docs/verify.md has an example"
            raise UserError(f"--names {path}", problem) from error

    def rename(name: str) -> str:
        """Return the name of a weight after all rules."""
        for pattern, replacement in rules.items():
            name = re.sub(pattern, replacement, name)
        return name

    return rename
