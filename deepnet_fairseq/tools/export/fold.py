"""Fold a model into a plain Post-LN or Pre-LN Transformer, if it can be: its method's factors go into weights.

LN(w o x + c f(x)) is to become LN(x' + f'(x')) with the same values. c goes into the last matrix of f; and so does a
module `outer` that only multiplies, by its `factor`; one in `before` goes into the matrices that read it. For w:
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
    """The first thing in a DeepModel that a plain Transformer has no place for, in words; None if it folds."""
    for stack in model.stacks().values():
        if stack.stream_dim != stack.embed_tokens.embedding_dim:
            return "its layers hand on more than one branch reads"
        places = {place for layer in stack.layers for place in layer.norm_place.values()}
        closed = stack.layer_norm is not None
        if places == {"none"}:
            return "it has no LayerNorm in its layers"
        if places != {"pre" if closed else "post"}:
            return "its LayerNorms do not all stand where a Post-LN or a Pre-LN has them"
        if stack.mixer is not None:
            return "its layers read a combination of all outputs before them"
        for address, module in stack.slots():
            slot = address.rpartition(".")[2]
            if slot in ("before", "outer") and _factor(module) is not None:
                continue
            if slot != "residual":
                return f"{_kind(module)} stands {PLACES[slot]}"
            if not knows_scales(module):
                return f"{_kind(module)} merges shortcut and branch"
            if not closed or any(
                parameter.is_meta for parameter in module.parameters()
            ):  # a blueprint's are no numbers
                continue
            shortcut, _ = module.scales()
            if isinstance(shortcut, Tensor) and shortcut.dim():
                return "its shortcut is scaled feature by feature, and no LayerNorm follows to absorb that"
            if not shortcut > 0:
                return "a factor on its shortcut is not above 0, and no LayerNorm follows to absorb that"
        if stack.layers[0].fc1.bias is None:
            return "its matrices have no biases"
    return None


def _factor(module: nn.Module) -> Scale | None:
    """Return what a module multiplies by, if that is all it does."""
    if not isinstance(module, nn.Sequential):
        return getattr(module, "factor", None)
    factors = [_factor(part) for part in module]
    return None if any(factor is None for factor in factors) else math.prod(factors)  # type: ignore[arg-type]


def _kind(module: nn.Module) -> str:
    if isinstance(module, nn.Sequential):
        return _kind(module[0])
    name = type(module).__name__
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


@torch.no_grad()
def fold(model: nn.Module) -> dict:
    """Fold a DeepModel of which `why_not_foldable` is None, in place, in float64; its slots can be left out then.

    Return the config fields that change, of whatever model: none, but where the embedding takes up a factor it can
    no longer be shared.
    """
    model.double()
    changes: dict = {}
    for name, stack in model.stacks().items():
        norm_before, product = stack.layernorm_embedding, torch.ones((), dtype=torch.float64)
        for layer in stack.layers:
            for sublayer in layer.sites:
                scales = layer.residual[sublayer].scales()
                shortcut, branch = (torch.as_tensor(scale, dtype=torch.float64) for scale in scales)
                _scale_output(layer, sublayer, branch)
                _fold_factors(layer, sublayer)
                if stack.layer_norm is not None:
                    product = product * shortcut
                    _scale_output(layer, sublayer, 1 / product)
                    continue
                if (shortcut == 1).all():
                    pass
                elif norm_before is not None:
                    norm_before.weight.mul_(shortcut)
                    norm_before.bias.mul_(shortcut)
                    _scale_readers(layer, sublayer, 1 / shortcut)
                elif not shortcut.dim():
                    _scale_output(layer, sublayer, 1 / shortcut)
                else:
                    changes |= _scale_embedding(model, name, shortcut)
                    _scale_readers(layer, sublayer, 1 / shortcut)
                norm_before = getattr(layer, NORM_NAMES[sublayer])
    return changes


def _fold_factors(layer: nn.Module, sublayer: str) -> None:
    slots = layer.slots(sublayer)
    for slot, fold_in in (("outer", _scale_output), ("before", _scale_readers)):
        if slot in slots:
            fold_in(layer, sublayer, torch.as_tensor(_factor(slots[slot]), dtype=torch.float64))


def _scale_output(layer: nn.Module, sublayer: str, factor: Tensor) -> None:
    *_, last = layer.matrices(sublayer).values()
    last.weight.mul_(factor.view(-1, 1))  # a vector multiplies rows
    last.bias.mul_(factor)


def _scale_readers(layer: nn.Module, sublayer: str, factor: Tensor) -> None:
    for role in READERS[sublayer]:
        layer.matrices(sublayer)[role].weight.mul_(factor)  # a vector multiplies columns


def _scale_embedding(model: nn.Module, name: str, factor: Tensor) -> dict:
    """Tokens and positions of one stack times a vector: an embedding of its own, a learned table of positions."""
    stack = getattr(model, name)
    stack.embed_tokens = _embedding(stack.embed_tokens.weight * factor, stack.padding_idx)  # the others keep theirs
    if stack.embed_positions is not None:
        stack.embed_positions = _embedding(_position_table(stack) * factor, stack.padding_idx)
    positions = {f"{name}_learned_pos": True} if stack.embed_positions is not None else {}
    return positions | dict.fromkeys(SHARING, False) | {"untie_weights_roberta": True}


def _embedding(weight: Tensor, padding_idx: int) -> nn.Embedding:
    return nn.Embedding(weight.size(0), weight.size(1), padding_idx, _weight=weight)


def _position_table(stack: nn.Module) -> Tensor:
    """Rows as fairseq's learned positions count them: padding_idx + 1 is the first position."""
    positions = stack.embed_positions
    if not isinstance(positions, SinusoidalPositions):
        return positions.weight
    return positions.table(stack.max_tokens + stack.padding_idx + 1).double()
