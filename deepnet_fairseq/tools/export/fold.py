"""Fold a model into a plain Post-LN or Pre-LN Transformer, if it can be: its method's factors go into weights.

A method may multiply the shortcut x of a merge by w and the branch f by c, each a number or a vector that multiplies
feature by feature (o). A plain Transformer has no such factors; its weights are changed until it computes the same.

Factors of the branch. c goes into the last matrix of f, and so does the factor of a module in the slot `outer`
(core/layer.py) that does nothing but multiply. The factor of a module in the slot `before` goes into the matrices that
read that module's output.

Factor w of the shortcut in Post-LN: LN(w o x + f(x)) becomes LN(x' + f'(x')), in one of two ways.
    upstream    The LayerNorm before the branch returns x' = w o x, by its gain and bias times w, and the matrices of f
                that read x' have their columns divided by w. Exact, for any vector w without zeros.
    downstream  f' = f / w, because LN(w x + f) = LN(x + f / w), w a number. Exact but for the LayerNorm's epsilon,
                which now counts w^2-fold: a relative 5e-6 at each LayerNorm of a deep model.
The first branch of a stack may have no LayerNorm before it. It is folded downstream, or for a vector w the embedding
returns w o x.

Factor w of the shortcut in Pre-LN, a number: the stream w x + c f(LN(x)) is divided by the product P of all w so far.
Then f' = c f / P, and LN(P x') = LN(x') but for the LayerNorm's epsilon.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...core.modules import SinusoidalPositions
from ...core.slots import NORM_NAMES, Scale, knows_scales

READERS = {"self_attn": ("q", "k", "v"), "encoder_attn": ("q",), "ffn": ("fc1",)}  # branch -> roles that read its input
SHARING = ("share_all_embeddings", "share_decoder_input_output_embed")  # config fields that tie an embedding
PLACES = {  # slot -> where it is, for a message
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
    """Return in words why a DeepModel cannot be folded into a plain Transformer; None if it can."""
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

        for address, module in stack.slots():  # "decoder.3.ffn.inner"
            slot = address.rpartition(".")[2]
            reason = _why_not_in_slot(slot, module, pre_ln)
            if reason is not None:
                return reason

        if stack.layers[0].fc1.bias is None:
            return "its matrices have no biases"
    return None


def _why_not_in_slot(slot: str, module: nn.Module, pre_ln: bool) -> str | None:
    """Return in words why a method's module cannot be folded; None if it can.

    slot: that the module is in, "residual" or a key of PLACES; pre_ln: whether the stack is Pre-LN.
    """
    if slot in ("before", "outer") and _factor(module) is not None:
        return None
    if slot != "residual":
        return f"{_kind(module)} stands {PLACES[slot]}"
    if not knows_scales(module):
        return f"{_kind(module)} merges shortcut and branch"
    if not pre_ln:  # a LayerNorm follows the merge, which absorbs the factor; write_transformer compares the scores
        return None

    if any(parameter.is_meta for parameter in module.parameters()):  # of models.blueprint: without values to look at
        return None
    shortcut, _ = module.scales()
    if isinstance(shortcut, Tensor) and shortcut.dim() > 0:
        return "its shortcut is scaled feature by feature, and no LayerNorm follows to absorb that"
    if not shortcut > 0:
        return "a factor on its shortcut is not above 0, and no LayerNorm follows to absorb that"
    return None


def _factor(module: nn.Module) -> Scale | None:
    """Return the factor of a module that does nothing but multiply by it, None for another module.

    Such a module has an attribute `factor`; that of several in sequence is the product of theirs.
    """
    if not isinstance(module, nn.Sequential):
        return getattr(module, "factor", None)
    factors = [_factor(part) for part in module]
    if any(factor is None for factor in factors):
        return None
    return math.prod(factors)  # type: ignore[arg-type]


def _kind(module: nn.Module) -> str:
    """Return the name of a module's class with its article, "a Multiply"; of several in sequence that of the first."""
    if isinstance(module, nn.Sequential):
        return _kind(module[0])
    name = type(module).__name__
    article = "an" if name[0] in "AEIO" else "a"
    return f"{article} {name}"


@torch.no_grad()
def fold(model: nn.Module) -> dict:
    """Fold a DeepModel of which `why_not_foldable` is None, in place, and leave it in float64.

    Its own modules, without those that the method has put into slots, are a plain Transformer then. Return the config
    fields that have to change, by the names of fairseq's models. There are none, unless an embedding takes up a factor:
    it can then no longer be shared.
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
    """Fold a Post-LN stack: its shortcut factors go upstream where a LayerNorm stands before the branch; see above.

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
    """Fold what multiplies a branch into its matrices; return the factor of its shortcut, () or (C,), in float64."""
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
    """Multiply the embeddings of tokens and positions of the stack `name` by a vector (C,).

    The embedding of tokens is shared no longer, and the positions become a learned table. Return the config fields that
    change, as for `fold`.
    """
    changes: dict = {}
    stack = getattr(model, name)

    # a new module, for the old one may be shared with the other stack and with the output
    stack.embed_tokens = _embedding(stack.embed_tokens.weight * factor, stack.padding_idx)
    if stack.embed_positions is not None:
        stack.embed_positions = _embedding(_position_table(stack) * factor, stack.padding_idx)
        changes[f"{name}_learned_pos"] = True

    for field_name in SHARING:
        changes[field_name] = False
    changes["untie_weights_roberta"] = True  # RoBERTa's name for not sharing
    return changes


def _embedding(weight: Tensor, padding_idx: int) -> nn.Embedding:
    return nn.Embedding(weight.size(0), weight.size(1), padding_idx, _weight=weight)


def _position_table(stack: nn.Module) -> Tensor:
    """Return the table of positions (rows, C) as fairseq counts rows: row padding_idx + 1 is the first position's."""
    positions = stack.embed_positions
    if not isinstance(positions, SinusoidalPositions):
        return positions.weight
    return positions.table(stack.max_tokens + stack.padding_idx + 1).double()
