"""Find the weights of residual branches in a state dict, and the factors of shortcuts, by their names.

The layer is the first number in a name. What stands before it gives the stack (encoder or decoder), what stands behind
it the branch (self_attn, encoder_attn or ffn) and the role (q, k, v, out, fc1 or fc2). The names of fairseq,
torchscale, torch and Hugging Face's Marian are known; others have to be renamed (docs/verify.md).
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
from ...wording import counted

# "encoder.layers.0.fc1.weight": before the layer "encoder.layers", the rest "fc1.weight"
LAYER = re.compile(r"(?P<before>.*?)(?:^|\.)(?P<layer>\d+)\.(?P<rest>.+)")
CROSS_ATTENTION = re.compile(r"encoder_attn|multihead_attn")  # the second one is torch's
ROLES = {  # sort of branch -> role -> how names end, without ".weight"; "qkv" is one matrix of all three
    "attention": {
        "qkv": r"in_proj(_weight)?",
        "q": r"q_proj(_weight)?",
        "k": r"k_proj(_weight)?",
        "v": r"v_proj(_weight)?",
        "out": r"out_proj",
    },
    "ffn": {"fc1": r"fc1|linear1", "fc2": r"fc2|linear2"},
}
NORM = re.compile(r".*(norm|(^|[._])ln(_?\w)?([._]|$)).*", re.IGNORECASE)  # "norm1", "ln_f", "self_attn_layer_norm"
FACTOR = re.compile(r"(?:.*[._])?(alpha|omega|(residual|res|skip|shortcut)_(scale|factor|weight))")  # of a shortcut
IGNORED = re.compile(  # names of known tensors that are in no branch; no note says that they are not recognised
    r".*(position|rel.*bias|version|_float_tensor|in_proj_bias|embed_tokens|shared|output_projection|lm_head).*"
)


@dataclass
class Matrix:
    """One weight matrix of a branch; weight.linear.weight is (out, in).

    name: as stored; the matrices of q, k and v have the same name if they are stored as one tensor.
    """

    name: str
    weight: Weight


@dataclass
class Factor:
    """The factors of a residual merge a x + b f, of shortcut x and branch f.

    stack: "encoder" or "decoder"; layer: from 1, None for all layers; sublayer: one of slots.BRANCHES, None for all
    branches of the layer; b: None for a number that the model stores, which is taken for a; source: the name under
    which it is stored, or "measured".
    """

    stack: str
    layer: int | None
    sublayer: str | None
    a: float
    b: float | None
    source: str


@dataclass
class RecognisedModel:
    """What was recognised of a model.

    depths: number of layers of "encoder" and of "decoder", in this order, 0 for a stack that it lacks; matrices: the
    weights of its branches; gains: weights (C,) of the LayerNorms in its layers; factors: of its shortcuts; config:
    {field: value} of its model config, empty if unknown; updates: how many its optimiser has made, None if unknown;
    unknown: names that were not recognised, with N for a layer's number; widths: stack -> C, for those that it has.
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
        """True if the model is one of this package's, by the architecture in its config."""
        return str(self.config.get("arch") or self.config.get("_name")) in archs.PRESETS  # YAML calls it _name


def linear_of(weight: Tensor) -> nn.Linear:
    """Return a Linear with the given weight (out, in), because the formulas of core/ take a weight in this form."""
    linear = nn.Linear(weight.size(1), weight.size(0), bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return linear


@dataclass
class _Entry:
    """A tensor of a layer, with what its name says.

    name: as stored; stack: "encoder", "decoder", or "" where the name does not say; layer: the number in the name,
    which `_number_layers` changes to one from 1; kind: of a matrix its branch ("self_attn", "encoder_attn" or "ffn"),
    else "norm" or "factor"; role: of a matrix a role of ROLES, of a norm "weight" or "bias", of a factor its name
    inside the layer.
    """

    name: str
    tensor: Tensor
    stack: str
    layer: int
    kind: str
    role: str


def recognise(
    weights: dict[str, Tensor],
    config: dict[str, Any],
    updates: int | None = None,
    rename: Callable[[str], str] = str,
) -> RecognisedModel:
    """Recognise the weights of branches, gains of LayerNorms and factors of shortcuts in a state dict, by their names.

    weights: name -> tensor; config, updates: as in RecognisedModel; rename: maps a name in `weights` to the name that
    fairseq would give it, by default (str) the same. UserError if not one matrix of a branch is recognised, or if a
    layer is missing.
    """
    entries = []  # tensors of layers
    others = {}  # name -> tensor, for those that are in no layer, or have names that are not known
    for name, tensor in weights.items():
        entry = _entry(name, rename(name), tensor)
        if entry is None:
            others[name] = tensor
        else:
            entries.append(entry)
    if not any(entry.kind in BRANCHES for entry in entries):
        some = ", ".join(name[:100] for name in list(weights)[:3]) or "the model"
        raise UserError(
            some, f"no branch's weights among {counted(len(weights), 'tensor')}; rename them by --names FILE"
        )

    model = RecognisedModel({"encoder": 0, "decoder": 0}, config=config, updates=updates)
    for entry in entries:
        entry.stack = entry.stack or "decoder"  # layers whose names do not say their stack are taken for a decoder's
    for stack in model.depths:
        _number_layers(model, stack, [entry for entry in entries if entry.stack == stack])
    _add_entries(model, entries)
    for name, tensor in others.items():
        _add_other(model, name, rename(name), tensor)
    return model


def _number_layers(model: RecognisedModel, stack: str, entries: list[_Entry]) -> None:
    """Set the depth of a stack in `model`, and number the layers of its `entries` from 1.

    entries: those of the stack. UserError if a layer is missing.
    """
    numbers = {entry.layer for entry in entries if entry.kind in BRANCHES}
    if not numbers:  # the model lacks the stack
        return

    first = min(*numbers, 1)  # layers are counted from 0 or from 1: a stack that begins at 2 lacks a layer
    model.depths[stack] = max(numbers) - first + 1
    if len(numbers) < model.depths[stack]:
        missing = counted(model.depths[stack] - len(numbers), "layer")
        raise UserError(stack, f"{missing} of those up to {max(numbers)} not there; rename by --names")
    for entry in entries:
        entry.layer += 1 - first


def _entry(name: str, known_as: str, tensor: Tensor) -> _Entry | None:
    """Return what the name of a layer's tensor says, None for a tensor that is not recognised.

    name: as stored; known_as: after renaming.
    """
    match = LAYER.fullmatch(known_as)
    if match is None or not tensor.is_floating_point() or IGNORED.fullmatch(known_as):
        return None

    stack = _stack_in(match["before"])
    layer = int(match["layer"])
    rest = match["rest"]  # the name inside the layer, as "self_attn.q_proj.weight"
    # the module's name, without its parameter's; torchscale's layers of two modalities end in A and B
    module = re.sub(r"\.(weight|bias|A|B)$", "", rest)
    if NORM.fullmatch(module) and tensor.dim() == 1:
        parameter = rest.rsplit(".", 1)[-1]
        return _Entry(name, tensor, stack, layer, kind="norm", role=parameter)
    if FACTOR.fullmatch(rest) and tensor.dim() <= 1:
        return _Entry(name, tensor, stack, layer, kind="factor", role=rest)
    if tensor.dim() != 2:
        return None

    # a matrix of a branch, if its name ends as a role's
    branch = _branch_in(module)
    patterns = ROLES["ffn" if branch == "ffn" else "attention"]
    for role, pattern in patterns.items():
        if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module):
            return _Entry(name, tensor, stack, layer, kind=branch, role=role)
    return None


def _stack_in(text: str) -> str:
    """Return the stack that a name, or its part before the layer, names: "encoder", "decoder", or "" for neither."""
    if "sentence_encoder" in text:  # RoBERTa's encoder, which was a part of a "decoder" in older versions of fairseq
        return "encoder"
    if "decoder" in text:
        return "decoder"
    if "encoder" in text:
        return "encoder"
    return ""


def _branch_in(module: str) -> str:
    """Return the branch of a matrix by the name of its module inside the layer; "ffn" if it names no attention."""
    if CROSS_ATTENTION.search(module):
        return "encoder_attn"
    if "attn" in module:
        return "self_attn"
    return "ffn"


def _add_entries(model: RecognisedModel, entries: list[_Entry]) -> None:
    """Set the widths of a model whose depths are known, and add the matrices, gains and factors of its layers.

    entries: all tensors of its layers.
    """
    for stack, depth in model.depths.items():
        if depth:
            of_stack = [entry for entry in entries if entry.stack == stack]
            model.widths[stack] = _width(of_stack)

    seen: set[tuple] = set()  # entries, but for their names: a module that is registered twice has two names
    for entry in entries:
        key = (entry.stack, entry.layer, entry.kind, entry.role, entry.tensor.data_ptr())
        is_without_branches = entry.stack not in model.widths  # such as a "decoder" with a LayerNorm alone
        if key in seen or is_without_branches:
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
    """Return the width C of a stack: the length that most of its matrices have as their height or width.

    Of lengths that are equally frequent it is the smallest. entries: those of the stack.
    """
    lengths: list[int] = []
    for entry in entries:
        if entry.kind in BRANCHES:
            lengths += set(entry.tensor.shape)  # a square matrix counts once
    return max(set(lengths), key=lambda length: (lengths.count(length), -length))


def _factor(entry: _Entry) -> Factor | None:
    """Return the factor that a layer's tensor, () or (C,), holds; None for a vector of different values."""
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
    """Yield the weights that a branch's tensor (out, in) holds: one, or q, k and v if these are stored as (3 out, in).

    width: C of the stack. Keys and values of cross-attention may read an input of another width.
    """
    parts = [(entry.role, entry.tensor)]  # (role, its matrix)
    if entry.role == "qkv":
        parts = list(zip("qkv", entry.tensor.chunk(3)))  # rows of q, then of k, then of v

    # any number of heads will do: no method's standard deviation of first weights depends on it
    site = Site(entry.stack, entry.layer, entry.kind, dim=width, num_heads=1)
    for role, tensor in parts:
        source_dim = entry.tensor.size(1) if role in ("k", "v") else width
        weight = Weight(site, role, linear_of(tensor), source_dim=source_dim)
        yield Matrix(entry.name, weight)


def _share_source_widths(matrices: list[Matrix]) -> None:
    """Set the source_dim of all weights of an attention (see slots.Weight) to the input width of its matrix k.

    `_matrices` has set that of q and out to C, because their shapes do not show it.
    """
    source_dims = {}  # site -> source_dim
    for matrix in matrices:
        if matrix.weight.role == "k":
            source_dims[matrix.weight.site] = matrix.weight.source_dim
    for matrix in matrices:
        # a feed-forward branch has no k, and an attention whose k was not recognised keeps what it has
        source_dim = source_dims.get(matrix.weight.site, matrix.weight.source_dim)
        matrix.weight = replace(matrix.weight, source_dim=source_dim)


def _add_other(model: RecognisedModel, name: str, known_as: str, tensor: Tensor) -> None:
    """Add a tensor that is recognised in no layer to `model`: as a factor of a whole stack, or as an unknown name.

    Biases, LayerNorms, single numbers that are no factor, whole numbers, and what is IGNORED are left out. name: as
    stored; known_as: after renaming.
    """
    if not tensor.is_floating_point() or IGNORED.fullmatch(known_as):
        return
    if tensor.numel() == 1 and FACTOR.fullmatch(known_as):  # as "deepnorm_alpha"
        stack = _stack_in(known_as) or "decoder"  # a language model's name need not say that it is one
        model.factors.append(Factor(stack, layer=None, sublayer=None, a=tensor.item(), b=None, source=name))
    elif tensor.numel() > 1 and not known_as.endswith("bias") and not NORM.fullmatch(known_as):
        # N in place of a layer's number, for one note on all layers; a very long name is cut
        pattern = re.sub(r"(^|\.)\d+\.", r"\1N.", name)[:100]
        if pattern not in model.unknown:
            model.unknown.append(pattern)
