"""Read checkpoints, folders, safetensors and mappings of names for `deepnet verify`, without running code in them."""

from __future__ import annotations

import argparse
import re
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import UserError
from ...files import parse, read_object

FILES = ("model.safetensors", "pytorch_model.bin")  # of a Hugging Face folder
WRAPPERS = ("model", "state_dict", "model_state_dict", "module")  # where checkpoints keep their weights
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}  # fmt: skip
HEADER = 10**8  # bytes, the most that safetensors' own reader takes
MAPPED = re.compile(r"(?:(encoder|decoder)\.)?(?:(self_attn|encoder_attn)\.(q|k|v|qkv|out)|ffn\.(fc1|fc2)|norm|factor)")


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], int | None]:
    """Return weights by name, config and number of updates (None: unknown) of a file or a Hugging Face folder.

    UserError, naming the file, for one that holds no weights.
    """
    if path.is_dir():
        config = path / "config.json"
        file = next((path / name for name in FILES if (path / name).is_file()), None)
        if file is None:
            raise UserError(f"{path}: has no {' or '.join(FILES)}; of fairseq name the checkpoint itself")
        said = read_object(config, "download it again, or remove it") if config.exists() else {}
        return _tensors(file)[0], said, None
    if not path.is_file():
        raise UserError(f"{path}: {'is no ordinary file' if path.exists() else 'no such file or folder'}")
    return _tensors(path)


def _tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], int | None]:
    if path.suffix == ".safetensors":
        return _safetensors(path), {}, None
    from ...plugin.checkpoints.reading import allow_plain_data, explained

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


def _safetensors(path: Path) -> dict[str, Tensor]:
    """Read the header's length (8 bytes, little-endian), the header in JSON, and the tensors' bytes."""
    try:
        with path.open("rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
            header = parse(file.read(min(start - 8, HEADER)).decode("utf-8"))
        size = path.stat().st_size
        content = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)[start:]
        tensors = {}
        for name, entry in header.items():
            if name != "__metadata__" and entry["dtype"] in DTYPES:
                first, last = entry["data_offsets"]
                values = content[first:last]
                values = values.clone() if values.data_ptr() % 8 else values  # where the header was not padded
                tensors[name] = values.view(DTYPES[entry["dtype"]]).view(entry["shape"])
        return tensors
    except (ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
        raise UserError(f"{path}: truncated, damaged or no safetensors file; download it again") from error


def read_names(path: Path) -> list[tuple[str, re.Pattern]]:
    """Return roles and regular expressions of a TOML file, in its order; UserError, naming it, for others."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"--names {path}: is no TOML ({error}); docs/verify.md has an example") from error
    found = []
    for role, pattern in table.items():
        try:
            compiled = re.compile(pattern)
            known = MAPPED.fullmatch(role) and "layer" in compiled.groupindex
        except (re.error, TypeError):
            known = False
        if not known:
            asked = r'give a role as "self_attn.q" a regular expression with (?P<layer>\d+), as docs/verify.md does'
            raise UserError(f"--names {path}: {role} = {pattern!r}: {asked}")
        found.append((role, compiled))
    return found
