"""Fold a model into a plain Post-LN or Pre-LN Transformer, if it can be: its method's factors go into weights.

LN(w o x + c f(x)) is to become LN(x' + f'(x')) with the same values; o multiplies feature by feature. c goes into the
last matrix of f, and so does the `factor` of a module `outer` that only multiplies; that of a module `before` goes into
the matrices that read its output. For w:
    upstream    the LayerNorm before gives x' = w o x (its gain and bias times w), and the matrices of f that read x'
                have their columns divided by w. Exact, for any vector w without zeros.
    downstream  f' = f / w, for LN(w x + f) = LN(x + f / w), w a number. Exact but for the LayerNorm's epsilon, which
                now counts w^2-fold: a relative 5e-6 at each LayerNorm of a deep model.
The first branch of a stack has no LayerNorm before it: downstream, or for a vector w the embedding gives w o x.
In Pre-LN w x + c f(LN(x)), w a number: the stream is divided by the product P of all w so far, so that f' = c f / P and
LN(P x') = LN(x'), but for the LayerNorm's epsilon.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...core.modules import SinusoidalPositions
from ...core.slots import NORM_NAMES, Scale, knows_scales

READERS = {"self_attn": ("q", "k", "v"), "encoder_attn": ("q",), "ffn": ("fc1",)}
SHARING = ("share_all_embeddings", "share_decoder_input_output_embed")
PLACES = {
    "beginning": "in front of the first layer",
    "before": "on the input of a branch",
    "hidden": "between fc1 and the activation",
    "heads": "on queries and keys by head",
    "inner": "in front of the last matrix of a branch",
    "outer": "on the output of a branch",
    "bypass": "beside a layer",
    "ending": "at the end of a stack",
}


def why_not_foldable(model: nn.Module) -> str | None:
    """Explain why a DeepModel cannot be folded into a plain Transformer; None if it can."""
    for stack in model.stacks().values():
        if stack.stream_dim != stack.embed_tokens.embedding_dim:
            return "its layers hand on more than one branch reads"
        places = {place for layer in stack.layers for place in layer.norm_place.values()}
        pre_ln = stack.layer_norm is not None
        if places == {"none"}:
            return "it has no LayerNorm in its layers"
        if places != {"pre" if pre_ln else "post"}:
            return "its LayerNorms do not all stand where a Post-LN or a Pre-LN has them"
        if stack.mixer is not None:
            return "its layers read a combination of all outputs before them"

        for address, module in stack.slots():
            reason = _why_not_in_slot(address.rpartition(".")[2], module, pre_ln)
            if reason is not None:
                return reason

        if stack.layers[0].fc1.bias is None:
            return "its matrices have no biases"
    return None


def _why_not_in_slot(slot: str, module: nn.Module, pre_ln: bool) -> str | None:
    """Explain why a module in a slot of a method cannot be folded; None if it can.

    slot: "residual" or a key of PLACES; pre_ln: whether the stack is Pre-LN.
    """
    if slot in ("before", "outer") and _factor(module) is not None:
        return None
    if slot != "residual":
        return f"{_kind(module)} stands {PLACES[slot]}"
    if not knows_scales(module):
        return f"{_kind(module)} merges shortcut and branch"
    if not pre_ln:
        return None

    if any(parameter.is_meta for parameter in module.parameters()):  # of a blueprint, which has no numbers to look at
        return None
    shortcut, _ = module.scales()
    if isinstance(shortcut, Tensor) and shortcut.dim() > 0:
        return "its shortcut is scaled feature by feature, and no LayerNorm follows to absorb that"
    if not shortcut > 0:
        return "a factor on its shortcut is not above 0, and no LayerNorm follows to absorb that"
    return None


def _factor(module: nn.Module) -> Scale | None:
    """Return what a module multiplies by, None if it does anything else."""
    if not isinstance(module, nn.Sequential):
        return getattr(module, "factor", None)
    factors = [_factor(part) for part in module]
    if any(factor is None for factor in factors):
        return None
    return math.prod(factors)  # type: ignore[arg-type]


def _kind(module: nn.Module) -> str:
    """Name the class of a module, of several in sequence the first one's, with its article."""
    if isinstance(module, nn.Sequential):
        return _kind(module[0])
    name = type(module).__name__
    article = "an" if name[0] in "AEIO" else "a"
    return f"{article} {name}"


@torch.no_grad()
def fold(model: nn.Module) -> dict:
    """Fold a DeepModel of which `why_not_foldable` is None, in place, in float64; it can do without its slots then.

    Return the config fields that have to change, by the names of fairseq's models. There are none, unless an embedding
    takes up a factor: it can then no longer be shared.
    """
    model.double()
    changes: dict = {}
    for name, stack in model.stacks().items():
        is_pre_ln = stack.layer_norm is not None
        if is_pre_ln:
            _fold_pre_ln(stack)
        else:
            changes |= _fold_post_ln(model, name, stack)
    return changes


def _fold_pre_ln(stack: nn.Module) -> None:
    """Fold a Pre-LN stack: divide its stream, and so each branch, by the product of the shortcut factors so far."""
    product = torch.ones((), dtype=torch.float64)
    for layer in stack.layers:
        for sublayer in layer.sites:
            product = product * _fold_branch(layer, sublayer)
            _scale_output(layer, sublayer, 1 / product)


def _fold_post_ln(model: nn.Module, name: str, stack: nn.Module) -> dict:
    """Fold a Post-LN stack: each shortcut factor goes into the LayerNorm before it, "upstream" where there is one.

    name: of the stack in the model. Return the config fields that change, as for `fold`.
    """
    changes: dict = {}
    norm_before = stack.layernorm_embedding
    for layer in stack.layers:
        for sublayer in layer.sites:
            shortcut = _fold_branch(layer, sublayer)

            if (shortcut == 1).all():
                pass  # nothing to fold
            elif norm_before is not None:  # upstream
                norm_before.weight.mul_(shortcut)
                norm_before.bias.mul_(shortcut)
                _scale_readers(layer, sublayer, 1 / shortcut)
            elif shortcut.dim() == 0:  # downstream
                _scale_output(layer, sublayer, 1 / shortcut)
            else:
                changes |= _scale_embedding(model, name, shortcut)
                _scale_readers(layer, sublayer, 1 / shortcut)

            norm_before = getattr(layer, NORM_NAMES[sublayer])
    return changes


def _fold_branch(layer: nn.Module, sublayer: str) -> Tensor:
    """Fold all factors of a branch into its matrices; return the factor of its shortcut, () or (C,), in float64."""
    shortcut_scale, branch_scale = layer.residual[sublayer].scales()
    shortcut = torch.as_tensor(shortcut_scale, dtype=torch.float64)
    _scale_output(layer, sublayer, torch.as_tensor(branch_scale, dtype=torch.float64))

    slots = layer.slots(sublayer)
    if "outer" in slots:
        _scale_output(layer, sublayer, torch.as_tensor(_factor(slots["outer"]), dtype=torch.float64))
    if "before" in slots:
        _scale_readers(layer, sublayer, torch.as_tensor(_factor(slots["before"]), dtype=torch.float64))
    return shortcut


def _scale_output(layer: nn.Module, sublayer: str, factor: Tensor) -> None:
    """Multiply the output of a branch by a factor, () or (C,), in its last matrix."""
    *_, last = layer.matrices(sublayer).values()
    last.weight.mul_(factor.view(-1, 1))  # a vector multiplies rows
    last.bias.mul_(factor)


def _scale_readers(layer: nn.Module, sublayer: str, factor: Tensor) -> None:
    """Multiply the input of a branch by a factor, () or (C,), in the matrices that read it."""
    for role in READERS[sublayer]:
        layer.matrices(sublayer)[role].weight.mul_(factor)  # a vector multiplies columns


def _scale_embedding(model: nn.Module, name: str, factor: Tensor) -> dict:
    """Multiply tokens and positions of the stack `name` by a vector (C,); return the config fields that change.

    The embedding becomes the stack's own, and its positions a learned table.
    """
    changes: dict = {}
    stack = getattr(model, name)

    # a new module, for the old one may be shared with the other stack and with the output
    stack.embed_tokens = _embedding(stack.embed_tokens.weight * factor, stack.padding_idx)
    if stack.embed_positions is not None:
        stack.embed_positions = _embedding(_position_table(stack) * factor, stack.padding_idx)
        changes[f"{name}_learned_pos"] = True

    for shared in SHARING:
        changes[shared] = False
    changes["untie_weights_roberta"] = True
    return changes


def _embedding(weight: Tensor, padding_idx: int) -> nn.Embedding:
    return nn.Embedding(weight.size(0), weight.size(1), padding_idx, _weight=weight)


def _position_table(stack: nn.Module) -> Tensor:
    """Return the table of positions with fairseq's count of rows: row padding_idx + 1 is the first position's."""
    positions = stack.embed_positions
    if not isinstance(positions, SinusoidalPositions):
        return positions.weight
    return positions.table(stack.max_tokens + stack.padding_idx + 1).double()
