"""Anybody's model as the weights of branches: names brought to sublayers and roles.

A layer is the first number in a name; what stands before it tells the stack, what stands behind it the branch and role.
NAMES has fairseq's, torchscale's and torch's own, Hugging Face's Marian, BART, T5, GPT-2, Llama and BERT, labml's and
xformers'. Others are given by a file of regular expressions (docs/verify.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...core import archs
from ...core.slots import BRANCHES, Site, Weight
from ...errors import UserError

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
OWN = re.compile(  # what the package's models have beside fairseq's names
    r"(encoder|decoder)\.(layers\.\d+\.((before|outer|residual|inner|hidden|bypass)\.|self_attn\.(inner|heads)\.)"
    r"|(mixer|beginning|ending)\.)"
)
CONSTANT = re.compile(r"(encoder|decoder)\.\w+")
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
LONGEST = 1000  # characters of a name
ENORMOUS = 1e30  # no factor


@dataclass
class Matrix:
    """One weight matrix of a branch, weight.linear (out, in), the branch's last one with its bias; name: as stored."""

    name: str
    weight: Weight


@dataclass
class Factor:
    """A number at the residual merges, a x + b f. layer, sublayer: None for all; None of a or b: not known.

    place: of the branch's LayerNorm in a live module, "pre", "post", "pre and post", "none", "" where it is not known.
    """

    stack: str
    layer: int | None
    sublayer: str | None
    a: float | None
    b: float | None
    source: str
    place: str = ""


@dataclass
class Found:
    """A model as it was found. depths: layers of "encoder" and "decoder"; norms: by (stack, layer), names and gains.

    closing: stack -> name of a LayerNorm at its end; widths: C of each stack; weights: all that was read; updates: how
    many its optimiser has done, None if that is not said; unknown: names that nothing was made of, with N for a layer;
    vectors: those of one dimension in layers; missing: layers between others, "decoder 3".
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
    vectors: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    widths: dict[str, int] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Is it a live module whose shortcuts were measured?"""
        return any(factor.b is not None for factor in self.factors)

    @property
    def ours(self) -> bool:
        """Is it a checkpoint of this package's models?"""
        return str(self.config.get("arch") or self.config.get("_name")) in archs.PRESETS


def is_norm(module: nn.Module) -> bool:
    """Is it a LayerNorm or RMSNorm, anybody's?"""
    name = type(module).__name__.lower()
    return name.endswith("norm") and not name.startswith(("batch", "group", "weight")) and not list(module.children())


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


def recognised(
    weights: dict[str, Tensor],
    config: dict[str, Any],
    updates: int | None,
    names: list[tuple[str, re.Pattern]],
    norms: frozenset[str] = frozenset(),
) -> Found:
    """The branches' weights, norms and factors in a state dict; UserError if none of its names is known.

    names: as read_names gives them, asked before NAMES; norms: names that are known to be gains of LayerNorms.
    """
    entries, others = [], {}
    weights = {name: tensor for name, tensor in weights.items() if _readable(name, tensor)}
    for name, tensor in weights.items():
        entry = _by_names(name, tensor, names) or _by_habit(name, tensor, norms)
        if entry is None:
            others[name] = tensor
        else:
            entries.append(entry)
    if not any(entry.kind in BRANCHES for entry in entries):
        some = ", ".join(name[:100] for name in list(weights)[:3])
        raise UserError(f"no branch's weights among its {len(weights)} tensors: {some} ..; map names with --names FILE")
    config = config | _own(weights, config)
    found = Found({"encoder": 0, "decoder": 0}, config=config, updates=updates, weights=weights)
    alone = _stack_alone(config)
    for entry in entries:
        entry.stack = entry.stack or alone
    for stack in found.depths:
        numbers = sorted({entry.layer for entry in entries if entry.stack == stack and entry.kind in BRANCHES})
        if numbers:
            first = min(numbers[0], 1)
            found.depths[stack] = numbers[-1] - first + 1
            if numbers[-1] > 100 + 2 * len(numbers):
                raise UserError(f"{stack}: layer {numbers[-1]} of {len(numbers)} layers; map names with --names FILE")
            gaps = [(a + 1, b - 1) for a, b in zip([first - 1, *numbers], numbers) if b > a + 1]
            found.missing += [f"{stack} {a}" if a == b else f"{stack} {a} to {b}" for a, b in gaps]
            for entry in entries:
                if entry.stack == stack:
                    entry.layer += 1 - first
    _fill(found, entries, weights)
    for name, tensor in others.items():
        _elsewhere(found, name, tensor, alone, norms)
    for key, value in config.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < ENORMOUS
        if number and FACTOR.fullmatch(str(key)):
            stack = next((stack for stack in found.depths if stack in key), alone)
            found.factors.append(Factor(stack, None, None, float(value), None, f"{key} of the config"))
    named = str(config.get("arch") or config.get("_name") or "")
    if PLAIN.fullmatch(named) or config.get("deepnorm") is False:
        said = f"{named or 'deepnorm false'} of the config"
        found.factors += [Factor(stack, None, None, 1.0, None, said) for stack, depth in found.depths.items() if depth]
    return found


def _own(weights: dict[str, Tensor], config: dict[str, Any]) -> dict[str, str]:
    """The architecture of our own state dict, known by the slots and constants that others do not have."""
    stacks = tuple(stack for stack in ("encoder", "decoder") if f"{stack}.layers.0.fc1.weight" in weights)
    slots = any(OWN.match(name) or CONSTANT.fullmatch(name) and not t.dim() for name, t in weights.items())
    arch = next((arch for arch, held in archs.STACKS.items() if held == stacks), None)
    return {"arch": arch} if slots and arch and not (config.get("arch") or config.get("_name")) else {}


def _readable(name: Any, tensor: Tensor) -> bool:
    """Is it a name and numbers?"""
    plain = tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_quantized and tensor.numel() > 0
    return isinstance(name, str) and len(name) <= LONGEST and plain


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
            if not (match["layer"] or "").isdecimal():
                raise UserError(f"--names: {role}: the layer of {name} is {match['layer']!r}, no number")
            return _Entry(name, tensor, stack, int(match["layer"]), kind, last)
    return None


def _by_habit(name: str, tensor: Tensor, norms: frozenset[str]) -> _Entry | None:
    match = LAYER.fullmatch(name)
    if match is None or not tensor.is_floating_point() or BUFFERS.fullmatch(name):
        return None
    stack, layer, rest = _stack(match["before"]), int(match["layer"]), match["rest"]
    bare = re.sub(r"\.(weight|bias|gamma|beta|scale|A|B)$", "", rest)
    if (name in norms or NORM.fullmatch(bare)) and tensor.dim() == 1:
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
    of = {stack: [e for e in entries if e.stack == stack] for stack, depth in found.depths.items() if depth}
    found.widths = widths = {stack: _width(held) for stack, held in of.items()}
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
    sources = {m.weight.site: m.weight.source_dim for m in found.matrices if m.weight.role == "k"}  # of q and v too
    for matrix in found.matrices:
        source = sources.get(matrix.weight.site, matrix.weight.source_dim)
        matrix.weight = replace(matrix.weight, source_dim=source)


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


def _elsewhere(found: Found, name: str, tensor: Tensor, alone: str, norms: frozenset[str]) -> None:
    """What is not in a layer, or unknown there."""
    bare = re.sub(r"\.(weight|bias)$", "", name)
    if not tensor.is_floating_point() or BUFFERS.fullmatch(name) or POSITIONS.fullmatch(name):
        return
    if tensor.dim() == 2 and EMBEDDING.fullmatch(bare):
        found.embeddings[name] = tensor
    elif tensor.dim() == 2 and PROJECTION.fullmatch(bare):
        found.projections[name] = tensor
    elif (name in norms or NORM.fullmatch(bare)) and tensor.dim() == 1:
        if not ELSEWHERE.search(name) and not LAYER.fullmatch(name):
            found.closing[_stack(name) or alone] = bare
    elif tensor.numel() == 1 and FACTOR.fullmatch(name):
        found.factors.append(Factor(_stack(name) or alone, None, None, tensor.item(), None, name))
    elif tensor.dim() > 0 and not name.endswith("bias") and not ELSEWHERE.search(name):
        general = re.sub(r"(^|\.)\d+\.", r"\1N.", name)
        if general not in found.unknown and tensor.numel() > 1:
            found.unknown.append(general[:100])
            found.vectors += [general[:100]] if tensor.dim() == 1 and LAYER.fullmatch(name) else []
