"""Fold a model into a plain Post-LN or Pre-LN Transformer, if it can be: its method's factors go into weights.

A method may merge shortcut x and branch f as w x + c f, where w and c are each a number or a vector (C,) that
multiplies feature by feature (o). A plain Transformer has no such factors; its weights are changed until it computes
the same. A stack is the encoder or the decoder, a branch (or sublayer) self-attention, cross-attention or feed-forward
of a layer. A slot is a place in a branch or a stack where a method may put a module of its own (core/methods/base.py).

Factors of the branch. c goes into the last matrix of f, and so does the factor of a module in the slot `outer`, on the
branch's output, that does nothing but multiply. The factor of such a module in the slot `before`, on the branch's
input, goes into the matrices that read that module's output.

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

# branch -> roles of the matrices that read its input; keys and values of cross-attention read the encoder's output
READERS = {"self_attn": ("q", "k", "v"), "encoder_attn": ("q",), "ffn": ("fc1",)}
SHARING = ("share_all_embeddings", "share_decoder_input_output_embed")  # config fields that tie an embedding
PLACES = {  # slot -> where it is, for a message; "residual" and "mixer" are not among them
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
    """Return in words why a DeepModel cannot be folded into a plain Transformer; None if it can.

    The words are a clause about the model.
    """
    for stack in model.stacks().values():
        # Method.stream_width can make the residual stream wider than what a branch reads
        if stack.stream_dim != stack.embed_tokens.embedding_dim:
            return "its layers hand on more than one branch reads"

        pre_ln = stack.layer_norm is not None  # the closing LayerNorm, which a Pre-LN has and a Post-LN has not
        norm_places: set[str] = set()  # "pre", "post" or "none" of each branch
        for layer in stack.layers:
            norm_places.update(layer.norm_place.values())
        if norm_places == {"none"}:
            return "it has no LayerNorm in its layers"
        if norm_places != {"pre" if pre_ln else "post"}:
            return "its LayerNorms do not all stand where a Post-LN or a Pre-LN has them"
        if stack.mixer is not None:
            return "its layers read a combination of all outputs before them"

        for address, module in stack.slots():  # the filled ones, as ("decoder.3.ffn.inner", module)
            slot = address.rpartition(".")[2]
            reason = _why_not_in_slot(slot, module, pre_ln)
            if reason is not None:
                return reason

        if stack.layers[0].fc1.bias is None:  # a method has biases in all of its matrices or in none
            return "its matrices have no biases"
    return None


def _why_not_in_slot(slot: str, module: nn.Module, pre_ln: bool) -> str | None:
    """Return in words why a method's module cannot be folded; None if it can.

    slot: the name of the slot that the module is in: "residual", where it merges shortcut and branch, or a key of
    PLACES; pre_ln: whether the stack is Pre-LN.
    """
    if slot in ("before", "outer") and _factor(module) is not None:
        return None
    if slot != "residual":
        return f"{_class_with_article(module)} stands {PLACES[slot]}"
    if not knows_scales(module):  # not w x + c f
        return f"{_class_with_article(module)} merges shortcut and branch"
    if not pre_ln:  # the LayerNorm after the merge absorbs w; if it cannot, fold_model finds that the scores differ
        return None

    # in Pre-LN, LN(P x') = LN(x') only for a number P > 0
    if any(parameter.is_meta for parameter in module.parameters()):  # models.blueprint gives parameters no values
        return None
    shortcut, _ = module.scales()
    if isinstance(shortcut, Tensor) and shortcut.dim() > 0:
        return "its shortcut is scaled feature by feature, and no LayerNorm follows to absorb that"
    if not shortcut > 0:  # or is NaN
        return "a factor on its shortcut is not above 0, and no LayerNorm follows to absorb that"
    return None


def _factor(module: nn.Module) -> Scale | None:
    """Return the factor of a module that does nothing but multiply its input by it; None for another module.

    Such a module has an attribute `factor`, a number or a tensor (C,). For an nn.Sequential of such modules the product
    of their factors is returned.
    """
    if not isinstance(module, nn.Sequential):
        return getattr(module, "factor", None)
    factors = [_factor(part) for part in module]
    if any(factor is None for factor in factors):
        return None
    return math.prod(factors)  # type: ignore[arg-type]


def _class_with_article(module: nn.Module) -> str:
    """Return the name of a module's class with its article, as "a Multiply"; of an nn.Sequential its first module's."""
    if isinstance(module, nn.Sequential):
        return _class_with_article(module[0])
    name = type(module).__name__
    article = "an" if name[0] in "AEIO" else "a"
    return f"{article} {name}"


@torch.no_grad()
def fold(model: nn.Module) -> dict[str, bool]:
    """Fold a DeepModel for which `why_not_foldable` returns None, in place, and leave it in float64.

    Its own modules, without those that the method has put into slots, are a plain Transformer then. Return the config
    fields of fairseq's models that have to change, as {name: new value}. There are none, unless an embedding takes up a
    factor (_scale_embedding): it can then no longer be shared.
    """
    model.double()  # so that products of many factors are rounded only once, at the end
    changes: dict[str, bool] = {}
    for name, stack in model.stacks().items():
        is_pre_ln = stack.layer_norm is not None
        if is_pre_ln:
            _fold_pre_ln(stack)
        else:
            changes |= _fold_post_ln(model, name, stack)
    return changes


def _fold_pre_ln(stack: nn.Module) -> None:
    """Fold a Pre-LN stack: scale each branch by its factors, and divide it by the product P of the shortcuts' so far.

    The stream is then the unfolded one divided by P. The next LayerNorm removes that factor; the closing LayerNorm does
    so after the last branch.
    """
    product = torch.ones((), dtype=torch.float64)
    for layer in stack.layers:
        for sublayer in layer.sites:  # names of the layer's branches, in forward order
            shortcut = _fold_branch(layer, sublayer)
            product = product * shortcut
            _scale_output(layer, sublayer, 1 / product)


def _fold_post_ln(model: nn.Module, name: str, stack: nn.Module) -> dict[str, bool]:
    """Fold a Post-LN stack: upstream where a LayerNorm stands before a branch, else as the top of this file says.

    name: "encoder" or "decoder", the stack's attribute in the model. Return the config fields that change, as `fold`
    does.
    """
    changes: dict[str, bool] = {}
    # the LayerNorm whose output the branch reads; the first branch has none unless there is one on the embedding
    norm_before = stack.layernorm_embedding
    for layer in stack.layers:
        for sublayer in layer.sites:  # names of the layer's branches, in forward order
            shortcut = _fold_branch(layer, sublayer)

            if (shortcut == 1).all():
                pass  # nothing to fold
            elif norm_before is not None:  # upstream, into the LayerNorm
                norm_before.weight.mul_(shortcut)
                norm_before.bias.mul_(shortcut)
                _scale_readers(layer, sublayer, 1 / shortcut)
            elif shortcut.dim() == 0:  # downstream
                _scale_output(layer, sublayer, 1 / shortcut)
            else:  # a vector in the first branch: upstream, into the embedding
                changes |= _scale_embedding(model, name, shortcut)
                _scale_readers(layer, sublayer, 1 / shortcut)

            norm_before = getattr(layer, NORM_NAMES[sublayer])
    return changes


def _fold_branch(layer: nn.Module, sublayer: str) -> Tensor:
    """Multiply the factors of a branch into its matrices; return the factor of its shortcut, () or (C,), in float64.

    The branch's factors are c of the merge w x + c f, and those of modules in its slots `outer` and `before`.
    """
    shortcut_scale, branch_scale = layer.residual[sublayer].scales()
    shortcut = torch.as_tensor(shortcut_scale, dtype=torch.float64)
    _scale_output(layer, sublayer, torch.as_tensor(branch_scale, dtype=torch.float64))

    slots = layer.slots(sublayer)  # `outer` and `before` are among them only if the method has filled them
    if "outer" in slots:
        outer = torch.as_tensor(_factor(slots["outer"]), dtype=torch.float64)
        _scale_output(layer, sublayer, outer)
    if "before" in slots:
        before = torch.as_tensor(_factor(slots["before"]), dtype=torch.float64)
        _scale_readers(layer, sublayer, before)
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


def _scale_embedding(model: nn.Module, name: str, factor: Tensor) -> dict[str, bool]:
    """Multiply the embeddings of tokens and positions of the stack `name` by a vector (C,).

    The embedding of tokens is shared no longer, and sinusoidal positions become a learned table, for fairseq would
    compute them without the factor. Return the config fields that change, as `fold` does.
    """
    changes: dict[str, bool] = {}
    stack = getattr(model, name)

    # a new module, because the old one may be shared with the other stack and with the projection to the vocabulary
    stack.embed_tokens = _embedding(stack.embed_tokens.weight * factor, stack.padding_idx)
    if stack.embed_positions is not None:
        stack.embed_positions = _embedding(_position_table(stack) * factor, stack.padding_idx)
        changes[f"{name}_learned_pos"] = True

    for field_name in SHARING:
        changes[field_name] = False
    changes["untie_weights_roberta"] = True  # RoBERTa's name for not sharing
    return changes


def _embedding(weight: Tensor, padding_idx: int) -> nn.Embedding:
    """Return an nn.Embedding with the given weight (rows, C)."""
    return nn.Embedding(weight.size(0), weight.size(1), padding_idx, _weight=weight)


def _position_table(stack: nn.Module) -> Tensor:
    """Return the table of positions (rows, C) of a stack, learned or sinusoidal.

    As in fairseq, row padding_idx + 1 is that of the first token.
    """
    positions = stack.embed_positions
    if not isinstance(positions, SinusoidalPositions):
        return positions.weight
    rows = stack.max_tokens + stack.padding_idx + 1
    return positions.table(rows).double()
