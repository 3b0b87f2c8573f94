"""Find the weights of branches in a state dict: names are mapped to sublayers and roles.

A layer is the first number in a name; what stands before it gives the stack, what stands behind it the branch and role.
ROLES has the names of fairseq, torchscale, torch and Hugging Face's Marian; others are renamed (docs/verify.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from ...core import archs
from ...core.slots import BRANCHES, Site, Weight
from ...errors import UserError

LAYER = re.compile(r"(?P<before>.*?)(?:^|\.)(?P<layer>\d+)\.(?P<rest>.+)")
CROSS = re.compile(r"encoder_attn|multihead_attn")
ROLES = {  # the end of a name -> role, in attention and in feed-forward branches
    "attention": {
        "qkv": r"in_proj(_weight)?",
        "q": r"q_proj(_weight)?",
        "k": r"k_proj(_weight)?",
        "v": r"v_proj(_weight)?",
        "out": r"out_proj",
    },
    "ffn": {"fc1": r"fc1|linear1", "fc2": r"fc2|linear2"},
}
NORM = re.compile(r".*(norm|(^|[._])ln(_?\w)?([._]|$)).*", re.IGNORECASE)
FACTOR = re.compile(r"(?:.*[._])?(alpha|omega|(residual|res|skip|shortcut)_(scale|factor|weight))")
IGNORED = re.compile(
    r".*(position|rel.*bias|version|_float_tensor|in_proj_bias|embed_tokens|shared|output_projection|lm_head).*"
)


@dataclass
class Matrix:
    """One weight matrix of a branch, weight.linear (out, in); name: as stored."""

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
class RecognisedModel:
    """A model as it was found.

    depths: layers of "encoder" and "decoder"; gains: of the LayerNorms in layers; widths: C of each stack; updates: how
    many its optimiser has made, None if unknown; unknown: names that were not recognised, with N for a layer.
    """

    depths: dict[str, int]
    matrices: list[Matrix] = field(default_factory=list)
    gains: list[Tensor] = field(default_factory=list)
    factors: list[Factor] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    updates: int | None = None
    unknown: list[str] = field(default_factory=list)
    widths: dict[str, int] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        """Return whether it is one of this package's models."""
        return str(self.config.get("arch") or self.config.get("_name")) in archs.PRESETS


def carrier(weight: Tensor) -> nn.Linear:
    """Return a Linear with the given weight (out, in), from which core's formulas read sizes."""
    linear = nn.Linear(weight.size(1), weight.size(0), bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return linear


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
    updates: int | None = None,
    rename: Callable[[str], str] = str,
) -> RecognisedModel:
    """Return the branches' weights, LayerNorm gains and factors of a state dict; UserError if no name is known.

    rename: the name, as fairseq has it, of a weight that others call otherwise.
    """
    entries, others = [], {}
    for name, tensor in weights.items():
        entry = _entry(name, rename(name), tensor)
        if entry is None:
            others[name] = tensor
        else:
            entries.append(entry)
    if not any(entry.kind in BRANCHES for entry in entries):
        some = ", ".join(name[:100] for name in list(weights)[:3])
        raise UserError(f"no branch's weights in {len(weights)} tensors ({some}); rename them by --names FILE")
    model = RecognisedModel({"encoder": 0, "decoder": 0}, config=config, updates=updates)
    for entry in entries:
        entry.stack = entry.stack or "decoder"
    for stack in model.depths:
        _number(model, stack, [entry for entry in entries if entry.stack == stack])
    _fill(model, entries)
    for name, tensor in others.items():
        _elsewhere(model, name, tensor)
    return model


def _number(model: RecognisedModel, stack: str, entries: list[_Entry]) -> None:
    """Set the depth of a stack, and number its layers from 1."""
    numbers = {entry.layer for entry in entries if entry.kind in BRANCHES}
    if not numbers:
        return
    first = min(*numbers, 1)
    model.depths[stack] = max(numbers) - first + 1
    if len(numbers) < model.depths[stack]:
        raise UserError(f"{stack}: {len(numbers)} of its layers up to {max(numbers)} are there; rename by --names")
    for entry in entries:
        entry.layer += 1 - first


def _entry(name: str, known_as: str, tensor: Tensor) -> _Entry | None:
    match = LAYER.fullmatch(known_as)
    if match is None or not tensor.is_floating_point() or IGNORED.fullmatch(known_as):
        return None
    stack, layer, rest = _stack(match["before"]), int(match["layer"]), match["rest"]
    bare = re.sub(r"\.(weight|bias|A|B)$", "", rest)
    if NORM.fullmatch(bare) and tensor.dim() == 1:
        return _Entry(name, tensor, stack, layer, "norm", rest.rsplit(".", 1)[-1])
    if FACTOR.fullmatch(rest) and tensor.dim() <= 1:
        return _Entry(name, tensor, stack, layer, "factor", rest)
    if tensor.dim() != 2:
        return None
    kind = "encoder_attn" if CROSS.search(bare) else "self_attn" if "attn" in bare else "ffn"
    table = ROLES["ffn" if kind == "ffn" else "attention"]
    role = next((role for role, pattern in table.items() if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", bare)), None)
    return _Entry(name, tensor, stack, layer, kind, role) if role else None


def _stack(text: str) -> str:
    if "sentence_encoder" in text:  # RoBERTa's, in fairseq once below a "decoder"
        return "encoder"
    return "decoder" if "decoder" in text else "encoder" if "encoder" in text else ""


def _fill(model: RecognisedModel, entries: list[_Entry]) -> None:
    of = {stack: [e for e in entries if e.stack == stack] for stack, depth in model.depths.items() if depth}
    model.widths = widths = {stack: _width(own) for stack, own in of.items()}
    seen: set[tuple] = set()  # a module may be registered twice
    for entry in entries:
        key = entry.stack, entry.layer, entry.kind, entry.role, entry.tensor.data_ptr()
        if key in seen or entry.stack not in widths:
            continue
        seen.add(key)
        if entry.kind == "norm":
            model.gains += [entry.tensor] if entry.role != "bias" else []
        elif entry.kind == "factor":
            value = entry.tensor.float()
            place = next((s for s in BRANCHES if s in entry.role), None)
            spread = value.std(unbiased=False) if value.numel() > 1 else value.new_zeros(())
            if spread <= 1e-3 * value.abs().mean():
                factor = Factor(entry.stack, entry.layer, place, value.mean().item(), None, entry.name)
                model.factors.append(factor)
        else:
            model.matrices += _matrices(entry, widths[entry.stack])
    sources = {m.weight.site: m.weight.source_dim for m in model.matrices if m.weight.role == "k"}  # of q and v too
    for matrix in model.matrices:
        source = sources.get(matrix.weight.site, matrix.weight.source_dim)
        matrix.weight = replace(matrix.weight, source_dim=source)


def _width(entries: list[_Entry]) -> int:
    """Return C: the side that matrices have most in common."""
    sides = [side for entry in entries if entry.kind in BRANCHES for side in set(entry.tensor.shape)]
    return max(set(sides), key=lambda side: (sides.count(side), -side))


def _matrices(entry: _Entry, width: int) -> Iterator[Matrix]:
    tensor, role = entry.tensor, entry.role
    parts = list(zip("qkv", tensor.chunk(3))) if role == "qkv" else [(role, tensor)]
    site = Site(entry.stack, entry.layer, entry.kind, width, 1)
    for part, weight in parts:
        source = tensor.size(1) if part in "kv" else width
        yield Matrix(entry.name, Weight(site, part, carrier(weight), source))


def _elsewhere(model: RecognisedModel, name: str, tensor: Tensor) -> None:
    """Take a factor that is not in a layer, or note a name that is unknown."""
    if not tensor.is_floating_point() or IGNORED.fullmatch(name):
        return
    if tensor.numel() == 1 and FACTOR.fullmatch(name):  # "deepnorm_alpha" is no norm
        model.factors.append(Factor(_stack(name) or "decoder", None, None, tensor.item(), None, name))
    elif tensor.numel() > 1 and not name.endswith("bias") and not NORM.fullmatch(name):
        general = re.sub(r"(^|\.)\d+\.", r"\1N.", name)[:100]
        model.unknown += [general] if general not in model.unknown else []
