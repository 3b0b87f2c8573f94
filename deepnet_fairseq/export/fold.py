"""Whether a model folds into a plain Post-LN or Pre-LN Transformer, and how: its method's factors go into weights.

LN(w o x + c f(x)) is to become LN(x' + f'(x')) with the same values. c goes into the last matrix of f. For w:
    upstream    the LayerNorm before gives x' = w o x (its gain and bias times w), and the matrices of f that read x'
                have their columns divided by w. Exact, for any vector w without zeros.
    downstream  f' = f / w, for LN(w x + f) = LN(x + f / w), w a number. Exact but for the LayerNorm's epsilon, which
                now counts w^2-fold: a relative 5e-6 at each LayerNorm of a deep model.
The first branch of a stack has no LayerNorm before it: downstream, or for a vector w the embedding gives w o x.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn

from ..profiling import residuals
from ..transformer.slots import NORM_NAMES, Scale

READERS = {"self_attn": ("q", "k", "v"), "encoder_attn": ("q",), "ffn": ("fc1",)}
SHARING = ("share_all_embeddings", "share_decoder_input_output_embed")
LAST = {"self_attn": "out", "encoder_attn": "out", "ffn": "fc2"}


def obstacle(model: nn.Module) -> str | None:
    """The first thing in a DeepModel that a plain Transformer has no place for, in words; None if it folds."""
    for stack in model.stacks().values():
        if stack.layers[0].norm_place == "none":
            return "it has no LayerNorm in its layers"
        if stack.mixer is not None:
            return "its layers read a combination of all outputs before them"
        if stack.ending is not None:
            return f"{_kind(stack.ending)} stands at the end of a stack"
        for layer in stack.layers:
            for place, modules in _slots(layer).items():
                for module in modules:
                    if module is not None:
                        return f"{_kind(module)} stands {place}"
            if layer.fc1.bias is None:
                return "its matrices have no biases"
    for site, residual in residuals(model):
        if not hasattr(residual, "scales"):
            return f"{_kind(residual)} merges shortcut and branch"
        shortcut, _ = residual.scales()
        if model.stacks()[site.stack].layers[0].norm_place == "pre" and (isinstance(shortcut, Tensor) or shortcut != 1):
            return "its shortcut is scaled, and no LayerNorm follows to absorb that"
    return None


def _slots(layer: nn.Module) -> dict[str, Iterable[nn.Module | None]]:
    """The method's modules in the slots of a layer, by the place where they stand."""
    return {
        "on the input of a branch": layer.before.values(),
        "between fc1 and the activation": [layer.hidden],
        "in front of the last matrix of a branch": [
            *(getattr(layer, name).inner for name in layer.sites if name != "ffn"),
            layer.inner,
        ],
        "on the output of a branch": layer.outer.values(),
    }


def _kind(module: nn.Module) -> str:
    if isinstance(module, nn.Sequential):
        return _kind(module[0])
    name = type(module).__name__
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


@torch.no_grad()
def fold(model: nn.Module, way: str = "upstream") -> dict:
    """Folds a DeepModel that `obstacle` has nothing against, in place, in float64; its slots can be left out then.

    Returns the config fields that change, of whatever model: none, but where the embedding takes up a factor it can
    no longer be shared. ValueError for a vector that way "downstream" cannot fold.
    """
    model.double()
    changes: dict = {}
    for name, stack in model.stacks().items():
        norm_before = stack.layernorm_embedding
        for layer in stack.layers:
            for sublayer in layer.sites:
                shortcut, branch = (_plain(scale) for scale in layer.residual[sublayer].scales())
                _scale_output(layer, sublayer, branch)
                if _is_one(shortcut):
                    pass
                elif norm_before is not None and way == "upstream":
                    norm_before.weight.mul_(shortcut)
                    norm_before.bias.mul_(shortcut)
                    _divide_readers(layer, sublayer, shortcut)
                elif not isinstance(shortcut, Tensor):
                    _scale_output(layer, sublayer, 1 / shortcut)
                elif way == "upstream":
                    changes |= _scale_embedding(model, name, shortcut)
                    _divide_readers(layer, sublayer, shortcut)
                else:
                    raise ValueError("a factor for each feature folds upstream only")
                norm_before = getattr(layer, NORM_NAMES[sublayer])
    return changes


def _plain(scale: Scale) -> Scale:
    """A vector as it is, a number in a tensor as a number."""
    return scale if not isinstance(scale, Tensor) else scale.double() if scale.dim() else float(scale)


def _is_one(scale: Scale) -> bool:
    return bool((scale == 1).all()) if isinstance(scale, Tensor) else scale == 1


def _matrix(layer: nn.Module, sublayer: str, role: str) -> nn.Linear:
    return next(w.linear for w in layer.weights() if (w.site.sublayer, w.role) == (sublayer, role))


def _scale_output(layer: nn.Module, sublayer: str, factor: Scale) -> None:
    last = _matrix(layer, sublayer, LAST[sublayer])
    last.weight.mul_(factor.unsqueeze(-1) if isinstance(factor, Tensor) else factor)  # a vector multiplies rows
    last.bias.mul_(factor)


def _divide_readers(layer: nn.Module, sublayer: str, factor: Scale) -> None:
    for role in READERS[sublayer]:
        _matrix(layer, sublayer, role).weight.div_(factor)  # a vector divides columns


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
    if not isinstance(positions, SinusoidalPositionalEmbedding):
        return positions.weight
    rows = stack.max_tokens + stack.padding_idx + 1
    return positions.get_embedding(rows, positions.embedding_dim, stack.padding_idx).double()
