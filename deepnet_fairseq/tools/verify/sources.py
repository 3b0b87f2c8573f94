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
    """The factors of a residual merge a x + b f.

    stack: "encoder" or "decoder"; layer, from 1, and sublayer: None for all; a, b: None if not known; source: the name
    of the stored number, or "measured".
    """

    stack: str
    layer: int | None
    sublayer: str | None
    a: float | None
    b: float | None
    source: str


@dataclass
class RecognisedModel:
    """A model as it was found.

    depths: layers of "encoder" and "decoder", in this order; matrices, factors: of the branches; gains: of the
    LayerNorms in layers; config: the model's, empty if unknown; updates: how many its optimiser has made, None if
    unknown; unknown: names that were not recognised, with N for a layer; widths: C of each stack.
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
    """A tensor with its place.

    name: as stored; stack: "encoder", "decoder", or "" where the name does not say; layer: as in the name; kind:
    "self_attn", "encoder_attn", "ffn", "norm" or "factor"; role: a key of ROLES, for a norm "weight" or "bias", for a
    factor its name inside the layer.
    """

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
    entries = []
    others = {}
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
    """Set the depth of a stack, and number its layers from 1; entries: those of the stack.

    UserError if a layer is missing.
    """
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
    """Return a tensor with its place, None if it is none of a layer that is known; known_as: its name as renamed."""
    match = LAYER.fullmatch(known_as)
    if match is None or not tensor.is_floating_point() or IGNORED.fullmatch(known_as):
        return None

    stack = _stack(match["before"])
    layer = int(match["layer"])
    rest = match["rest"]
    bare = re.sub(r"\.(weight|bias|A|B)$", "", rest)
    if NORM.fullmatch(bare) and tensor.dim() == 1:
        parameter = rest.rsplit(".", 1)[-1]
        return _Entry(name, tensor, stack, layer, kind="norm", role=parameter)
    if FACTOR.fullmatch(rest) and tensor.dim() <= 1:
        return _Entry(name, tensor, stack, layer, kind="factor", role=rest)
    if tensor.dim() != 2:
        return None

    kind = _branch(bare)
    table = ROLES["ffn" if kind == "ffn" else "attention"]
    for role, pattern in table.items():
        if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", bare):
            return _Entry(name, tensor, stack, layer, kind=kind, role=role)
    return None


def _stack(text: str) -> str:
    """Return the stack that a name, or what stands before its layer, speaks of; "" if of none."""
    if "sentence_encoder" in text:  # RoBERTa's, in fairseq once below a "decoder"
        return "encoder"
    if "decoder" in text:
        return "decoder"
    if "encoder" in text:
        return "encoder"
    return ""


def _branch(bare: str) -> str:
    """Return the branch that a matrix belongs to; bare: its name inside the layer."""
    if CROSS.search(bare):
        return "encoder_attn"
    if "attn" in bare:
        return "self_attn"
    return "ffn"


def _fill(model: RecognisedModel, entries: list[_Entry]) -> None:
    """Put the widths, and the matrices, gains and factors of layers, into a model whose depths are known."""
    for stack, depth in model.depths.items():
        if depth:
            model.widths[stack] = _width([entry for entry in entries if entry.stack == stack])

    seen: set[tuple] = set()  # a module may be registered twice
    for entry in entries:
        key = (entry.stack, entry.layer, entry.kind, entry.role, entry.tensor.data_ptr())
        if key in seen or entry.stack not in model.widths:
            continue
        seen.add(key)

        if entry.kind == "norm":
            if entry.role != "bias":
                model.gains.append(entry.tensor)
        elif entry.kind == "factor":
            factor = _factor(entry)
            if factor is not None:
                model.factors.append(factor)
        else:
            model.matrices += _matrices(entry, model.widths[entry.stack])
    _share_source_widths(model.matrices)


def _width(entries: list[_Entry]) -> int:
    """Return C of a stack: the side that most of its matrices have, of equals the smaller one."""
    sides = [side for entry in entries if entry.kind in BRANCHES for side in set(entry.tensor.shape)]
    return max(set(sides), key=lambda side: (sides.count(side), -side))


def _factor(entry: _Entry) -> Factor | None:
    """Return the factor that a layer's tensor holds; None if it has another value for each feature."""
    value = entry.tensor.float()
    spread = value.std(unbiased=False) if value.numel() > 1 else value.new_zeros(())
    is_one_number = spread <= 1e-3 * value.abs().mean()  # False for NaN too
    if not is_one_number:
        return None

    sublayer = None
    for branch in BRANCHES:
        if branch in entry.role:
            sublayer = branch
            break
    return Factor(entry.stack, entry.layer, sublayer, a=value.mean().item(), b=None, source=entry.name)


def _matrices(entry: _Entry, width: int) -> Iterator[Matrix]:
    """Yield the weights that a branch's tensor (out, in) holds: q, k and v if it is all three, one below the other.

    width: C of the stack. The keys and values of cross-attention may have an input of another width.
    """
    parts = [(entry.role, entry.tensor)]
    if entry.role == "qkv":
        parts = list(zip("qkv", entry.tensor.chunk(3)))

    site = Site(entry.stack, entry.layer, entry.kind, dim=width, num_heads=1)
    for role, tensor in parts:
        source_dim = entry.tensor.size(1) if role in ("k", "v") else width
        yield Matrix(entry.name, Weight(site, role, carrier(tensor), source_dim=source_dim))


def _share_source_widths(matrices: list[Matrix]) -> None:
    """Give all weights of an attention the source_dim that its keys' weight shows."""
    source_dims = {}
    for matrix in matrices:
        if matrix.weight.role == "k":
            source_dims[matrix.weight.site] = matrix.weight.source_dim
    for matrix in matrices:
        source_dim = source_dims.get(matrix.weight.site, matrix.weight.source_dim)
        matrix.weight = replace(matrix.weight, source_dim=source_dim)


def _elsewhere(model: RecognisedModel, name: str, tensor: Tensor) -> None:
    """Take a factor that is not in a layer, or note a name that is unknown."""
    if not tensor.is_floating_point() or IGNORED.fullmatch(name):
        return
    if tensor.numel() == 1 and FACTOR.fullmatch(name):  # "deepnorm_alpha" is no norm
        stack = _stack(name) or "decoder"
        model.factors.append(Factor(stack, layer=None, sublayer=None, a=tensor.item(), b=None, source=name))
    elif tensor.numel() > 1 and not name.endswith("bias") and not NORM.fullmatch(name):
        general = re.sub(r"(^|\.)\d+\.", r"\1N.", name)[:100]
        if general not in model.unknown:
            model.unknown.append(general)
