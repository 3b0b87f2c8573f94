"""Anybody's model as the weights of branches: files that run no code, and names brought to sublayers and roles.

A layer is the first number in a name; what stands before it tells the stack, what stands behind it the branch and role.
NAMES has fairseq's, torchscale's and torch's own, Hugging Face's Marian, BART, T5, GPT-2, Llama and BERT, labml's and
xformers'. Others are given by a file of regular expressions (docs/verify.md).
"""

from __future__ import annotations

import argparse
import re
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core import archs
from ...core.slots import BRANCHES, Site, Weight
from ...errors import UserError
from ...files import parse, read_object

LAYER = re.compile(r"(?P<before>.*?)(?:^|\.)(?P<layer>\d+)\.(?P<rest>.+)")
CROSS = re.compile(r"encoder_attn|EncDecAttention|cross_?att|cross_?mha|wrap_cross|multihead_attn|src_attn")
ATTENTION = re.compile(r"att|mha", re.IGNORECASE)
# role -> the end of a name, in attention and in feed-forward branches
NAMES = {
    "attention": {
        "qkv": r"in_proj(_weight)?|c_attn|query_key_value|W?qkv(_proj)?|W_pack",
        "q": r"(q|wq|to_q|q_lin|query)(_proj)?(_weight)?(\.linear)?",
        "k": r"(k|wk|to_k|k_lin|key)(_proj)?(_weight)?(\.linear)?",
        "v": r"(v|wv|to_v|v_lin|value)(_proj)?(_weight)?(\.linear)?",
        "out": r"out_proj|o_proj|c_proj|proj|o|wo|to_out(\.0)?|out_lin|output|dense|output\.dense",
    },
    "ffn": {
        "fc1": r"fc1|linear1|lin1|layer1|linear_v|wi(_[01])?|w_?[13]|gate_proj|up_proj|gate_up_proj|c_fc"
               r"|intermediate\.dense|dense_h_to_4h|mlp\.0",
        "fc2": r"fc2|linear2|lin2|layer2|wo|w_?2|down_proj|c_proj|output\.dense|dense_4h_to_h|mlp\.[1-4]",
    },
}  # fmt: skip
ROLES = {kind: {role: re.compile(rf"(?:.*[._])?(?:{p})") for role, p in table.items()} for kind, table in NAMES.items()}
NORM = re.compile(r".*(norm|(^|[._])ln(_?\w)?([._]|$)).*", re.IGNORECASE)
ELSEWHERE = re.compile(r"emb|lm_head|predictions|classif|pooler|mixer|beginning|ending", re.IGNORECASE)
FACTOR = re.compile(
    r"(?:.*\.)?(((deepnorm|residual|res|skip|shortcut|encoder|decoder)_)*(alpha|omega)"
    r"|(residual|res|skip|shortcut)_(scale|factor|weight|multiplier)|residual\.\w+\.\w+)"
)
EMBEDDING = re.compile(r"(?:.*\.)?(embed_tokens|wte|shared|word_embeddings|tok_embeddings|token_embedding|tokens)")
PROJECTION = re.compile(r"(?:.*\.)?(output_projection|lm_head|embed_out|generator|proj_out)")
POSITIONS = re.compile(r".*(position|wpe|rel.*bias|relative_attention_bias|pos_emb).*", re.IGNORECASE)
BUFFERS = re.compile(r".*(version|_float_tensor|inv_freq|masked_bias|attn\.bias|in_proj_bias)")
PLAIN = re.compile(r"(transformer|roberta|bart)(_\w+)?")  # fairseq's own models, whose shortcuts have no factor
WRAPPERS = ("model", "state_dict", "model_state_dict", "module")  # where checkpoints keep their weights
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}  # fmt: skip
MAPPED = re.compile(r"(?:(encoder|decoder)\.)?(?:(self_attn|encoder_attn)\.(q|k|v|qkv|out)|ffn\.(fc1|fc2)|norm|factor)")


@dataclass
class Matrix:
    """One weight matrix of a branch, weight.linear (out, in), the branch's last one with its bias; name: as stored."""

    name: str
    weight: Weight


@dataclass
class Factor:
    """A number at the residual merges, a x + b f. layer, sublayer: None for all; None of a or b: not known."""

    stack: str
    layer: int | None
    sublayer: str | None
    a: float | None
    b: float | None
    source: str


@dataclass
class Found:
    """A model as it was found. depths: layers of "encoder" and "decoder"; norms: by (stack, layer), names and gains.

    closing: stack -> name of a LayerNorm at its end; updates: how many its optimiser has done, None if that is not
    said; unknown: names that nothing was made of, with N for a layer; missing: layers between others, "decoder 3".
    """

    depths: dict[str, int]
    matrices: list[Matrix] = field(default_factory=list)
    norms: dict[tuple[str, int], list[tuple[str, Tensor]]] = field(default_factory=dict)
    closing: dict[str, str] = field(default_factory=dict)
    factors: list[Factor] = field(default_factory=list)
    embeddings: dict[str, Tensor] = field(default_factory=dict)
    projections: dict[str, Tensor] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    updates: int | None = None
    unknown: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def ours(self) -> bool:
        """Is it a checkpoint of this package's models?"""
        return str(self.config.get("arch") or self.config.get("_name")) in archs.PRESETS


class Carrier(nn.Linear):
    """A Linear of what is there, (out, in) and (out,), for core's formulas ask one for its sizes; nothing is drawn."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__(1, 1, bias=bias is not None)
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            self.bias = nn.Parameter(bias, requires_grad=False)

    def reset_parameters(self) -> None:
        pass


@dataclass
class _Entry:
    """A tensor with its place. kind: "self_attn", "encoder_attn", "ffn", "norm" or "factor"; layer: as in the name."""

    name: str
    tensor: Tensor
    stack: str
    layer: int
    kind: str
    role: str


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], int | None]:
    """Weights by name, config and number of updates (None: not said) of a file or a Hugging Face folder.

    Nothing in them is run. UserError, naming the file, for what holds no weights.
    """
    if path.is_dir():
        weights = {name: tensor for file in _weight_files(path) for name, tensor in _tensors(file)[0].items()}
        config = path / "config.json"
        return weights, read_object(config, "download it again, or remove it") if config.exists() else {}, None
    if not path.is_file():
        raise UserError(f"{path}: {'is no ordinary file' if path.exists() else 'no such file or folder'}")
    return _tensors(path)


def _weight_files(folder: Path) -> list[Path]:
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (index := folder / f"{name}.index.json").is_file():
            shards = read_object(index, "download the folder again").get("weight_map")
            if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
                raise UserError(f"{index}: has no weight_map of names; download the folder again")
            files = [folder / Path(shard).name for shard in sorted(set(shards.values()))]
            if lost := [file.name for file in files if not file.is_file()]:
                raise UserError(f"{folder}: {', '.join(lost)} of {index.name} is not there; download it again")
            return files
        if (folder / name).is_file():
            return [folder / name]
    raise UserError(f"{folder}: has no model.safetensors or pytorch_model.bin; of fairseq name the checkpoint itself")


def _tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], int | None]:
    if path.suffix == ".safetensors":
        return _safetensors(path), {}, None
    from ...plugin.checkpoints.reading import allow_plain_data, explained

    allow_plain_data()
    mapped = zipfile.is_zipfile(path)  # torch's format since 1.6 need not be read as a whole
    if mapped and any("/code/" in name for name in zipfile.ZipFile(path).namelist()):
        raise UserError(f"{path}: refused, it is a TorchScript archive, which is code; save the module's state_dict()")
    try:
        content = explained(torch.load, str(path), map_location="cpu", weights_only=True, mmap=mapped)
    except UserError as error:
        way_out = (
            "; save the module's state_dict(), or give it to verify() from Python" if "refused" in str(error) else ""
        )
        raise UserError(f"{error}{way_out}") from error
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
    """The format's length of a header (8 bytes, little-endian), the header in JSON, the tensors' bytes."""
    damaged = UserError(f"{path}: truncated, damaged or no safetensors file; download it again")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= size - 8:
            raise damaged
        try:
            header = parse(file.read(length).decode("utf-8"))
            start, tensors = 8 + length, {}
            content = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
            for name, entry in header.items():
                if name == "__metadata__" or entry["dtype"] not in DTYPES:
                    continue
                first, last = entry["data_offsets"]
                if not 0 <= first <= last <= size - start:
                    raise damaged
                values, dtype = content[start + first : start + last], DTYPES[entry["dtype"]]
                if (start + first) % dtype.itemsize:
                    values = values.clone()
                tensors[name] = values.view(dtype).view(entry["shape"])
        except (ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
            raise error if error is damaged else damaged from error
    return tensors


def read_names(path: Path) -> list[tuple[str, re.Pattern]]:
    """Role -> regular expression from a TOML or JSON file, in its order; UserError, naming it, for what is neither."""
    if path.suffix == ".json":
        table = read_object(path, "docs/verify.md has an example")
    else:
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"--names {path}: is no TOML ({error}); docs/verify.md has an example") from error
    found = []
    for role, pattern in table.items():
        if not MAPPED.fullmatch(role):
            raise UserError(f'--names {path}: {role}: no role; say as "self_attn.q" or "decoder.ffn.fc1"')
        try:
            compiled = re.compile(pattern)
        except (re.error, TypeError) as error:
            raise UserError(f"--names {path}: {role}: is no regular expression ({error})") from error
        if "layer" not in compiled.groupindex:
            raise UserError(rf"--names {path}: {role}: has no (?P<layer>\d+) where the layer's number stands")
        found.append((role, compiled))
    return found


def recognised(
    weights: dict[str, Tensor], config: dict[str, Any], updates: int | None, names: list[tuple[str, re.Pattern]]
) -> Found:
    """The branches' weights, norms and factors in a state dict; UserError if none of its names is known.

    names: as read_names gives them, asked before NAMES.
    """
    entries, others = [], {}
    for name, tensor in weights.items():
        entry = _by_names(name, tensor, names) or _by_habit(name, tensor)
        if entry is None:
            others[name] = tensor
        else:
            entries.append(entry)
    if not any(entry.kind in BRANCHES for entry in entries):
        some = ", ".join(list(weights)[:3])
        raise UserError(f"no branch's weights among its {len(weights)} tensors: {some} ..; map names with --names FILE")
    found = Found({"encoder": 0, "decoder": 0}, config=config, updates=updates)
    alone = _stack_alone(config)
    for entry in entries:
        entry.stack = entry.stack or alone
    for stack in found.depths:
        numbers = sorted({entry.layer for entry in entries if entry.stack == stack and entry.kind in BRANCHES})
        if numbers:
            first = min(numbers[0], 1)
            found.depths[stack] = numbers[-1] - first + 1
            found.missing += [f"{stack} {n}" for n in range(first, numbers[-1]) if n not in numbers]
            for entry in entries:
                if entry.stack == stack:
                    entry.layer += 1 - first
    _fill(found, entries, weights)
    for name, tensor in others.items():
        _elsewhere(found, name, tensor, alone)
    for key, value in config.items():
        if FACTOR.fullmatch(str(key)) and isinstance(value, (int, float)) and not isinstance(value, bool):
            stack = next((stack for stack in found.depths if stack in key), alone)
            found.factors.append(Factor(stack, None, None, float(value), None, f"{key} of the config"))
    named = str(config.get("arch") or config.get("_name") or "")
    if PLAIN.fullmatch(named) or config.get("deepnorm") is False:
        said = f"{named or 'deepnorm false'} of the config"
        found.factors += [Factor(stack, None, None, 1.0, None, said) for stack, depth in found.depths.items() if depth]
    return found


def _stack_alone(config: dict[str, Any]) -> str:
    """Which stack the layers are of whose names do not say it."""
    said = f"{config.get('model_type', '')} {config.get('architectures', '')} {config.get('arch', '')}".lower()
    return "encoder" if re.search("bert|masked|electra|encoder", said) else "decoder"


def _by_names(name: str, tensor: Tensor, names: list[tuple[str, re.Pattern]]) -> _Entry | None:
    for role, pattern in names:
        if match := pattern.fullmatch(name):
            *place, last = role.split(".")
            stack = place[0] if place and place[0] not in BRANCHES else _stack(name)
            kind = place[-1] if place and place[-1] in BRANCHES else last
            return _Entry(name, tensor, stack, int(match["layer"]), kind, last)
    return None


def _by_habit(name: str, tensor: Tensor) -> _Entry | None:
    match = LAYER.fullmatch(name)
    if match is None or not tensor.is_floating_point() or BUFFERS.fullmatch(name):
        return None
    stack, layer, rest = _stack(match["before"]), int(match["layer"]), match["rest"]
    bare = re.sub(r"\.(weight|bias|gamma|beta|scale|A|B)$", "", rest)
    if NORM.fullmatch(bare) and tensor.dim() == 1:
        return _Entry(name, tensor, stack, layer, "norm", rest.rsplit(".", 1)[-1])
    if FACTOR.fullmatch(rest) and tensor.dim() <= 1:
        return _Entry(name, tensor, stack, layer, "factor", rest)
    if tensor.dim() != 2 or POSITIONS.fullmatch(rest):
        return None
    kind = "encoder_attn" if CROSS.search(bare) else "self_attn" if ATTENTION.search(bare) else "ffn"
    table = ROLES["ffn" if kind == "ffn" else "attention"]
    role = next((role for role, pattern in table.items() if pattern.fullmatch(bare)), None)
    return _Entry(name, tensor, stack, layer, kind, role) if role else None


def _stack(text: str) -> str:
    if "sentence_encoder" in text:  # RoBERTa's, in fairseq once below a "decoder"
        return "encoder"
    return "decoder" if "decoder" in text else "encoder" if "encoder" in text else ""


def _fill(found: Found, entries: list[_Entry], weights: dict[str, Tensor]) -> None:
    widths = {stack: _width([e for e in entries if e.stack == stack]) for stack, depth in found.depths.items() if depth}
    seen: set[tuple] = set()  # a module may be registered twice
    for entry in entries:
        key = entry.stack, entry.layer, entry.kind, entry.role, entry.tensor.data_ptr()
        if key in seen or entry.stack not in widths:
            continue
        seen.add(key)
        if entry.kind == "norm":
            if entry.role not in ("bias", "beta"):
                found.norms.setdefault((entry.stack, entry.layer), []).append((entry.name, entry.tensor))
        elif entry.kind == "factor":
            value = entry.tensor.float()
            place = next((s for s in BRANCHES if s in entry.role), None)
            spread = value.std(unbiased=False) if value.numel() > 1 else value.new_zeros(())
            if spread <= 1e-3 * value.abs().mean():
                factor = Factor(entry.stack, entry.layer, place, value.mean().item(), None, entry.name)
                found.factors.append(factor)
        else:
            found.matrices += _matrices(entry, widths[entry.stack], weights)


def _width(entries: list[_Entry]) -> int:
    """C: the side that matrices have most in common."""
    sides = [side for entry in entries if entry.kind in BRANCHES for side in set(entry.tensor.shape)]
    return max(set(sides), key=lambda side: (sides.count(side), -side))


def _matrices(entry: _Entry, width: int, weights: dict[str, Tensor]) -> Iterator[Matrix]:
    tensor, role = entry.tensor, entry.role
    if tensor.dim() != 2:
        raise UserError(
            f"{entry.name}: of shape {tuple(tensor.shape)}, no matrix {entry.kind}.{role}; map it otherwise"
        )
    rows, columns = tensor.shape
    inwards = rows == width != columns if role in ("fc1", "qkv") else columns == width != rows and role == "fc2"
    if inwards:  # GPT-2's Conv1D keeps (in, out)
        tensor = tensor.t()
    parts = [(role, tensor)]
    if role == "qkv":  # one below the other; there may be fewer keys and values than queries
        keys = max(0, len(tensor) - tensor.size(1)) // 2
        parts = list(zip("qkv", tensor.split([len(tensor) - 2 * keys, keys, keys])))
    elif "gate_up" in entry.name:
        parts = [(role, half) for half in tensor.chunk(2)]
    bias = weights.get(re.sub("weight$", "bias", entry.name)) if role in ("out", "fc2") else None
    site = Site(entry.stack, entry.layer, entry.kind, width, 1)
    for part, weight in parts:
        source = tensor.size(1) if part in "kv" else width
        yield Matrix(entry.name, Weight(site, part, Carrier(weight, bias), source))


def _elsewhere(found: Found, name: str, tensor: Tensor, alone: str) -> None:
    """What is not in a layer, or unknown there."""
    bare = re.sub(r"\.(weight|bias)$", "", name)
    if not tensor.is_floating_point() or BUFFERS.fullmatch(name) or POSITIONS.fullmatch(name):
        return
    if tensor.dim() == 2 and EMBEDDING.fullmatch(bare):
        found.embeddings[name] = tensor
    elif tensor.dim() == 2 and PROJECTION.fullmatch(bare):
        found.projections[name] = tensor
    elif NORM.fullmatch(bare) and tensor.dim() == 1:
        if not ELSEWHERE.search(name) and not LAYER.fullmatch(name):
            found.closing[_stack(name) or alone] = bare
    elif tensor.numel() == 1 and FACTOR.fullmatch(name):
        found.factors.append(Factor(_stack(name) or alone, None, None, tensor.item(), None, name))
    elif tensor.dim() > 0 and not name.endswith("bias") and not ELSEWHERE.search(name):
        general = re.sub(r"(^|\.)\d+\.", r"\1N.", name)
        if general not in found.unknown and tensor.numel() > 1:
            found.unknown.append(general)
