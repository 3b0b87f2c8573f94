"""One step of incremental decoding, in which a layer's Python would cost as much as its arithmetic.

The same equation as layer.py's, with everything resolved that stays the same from step to step: weights that share an
input are packed, modules that nobody watches are called by their forward, those that do nothing now are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from .attention import attention_weights
from .cache import DecoderCache
from .packed import pack, watched


class LayerStep:
    """A decoder layer's step: the newest token of each hypothesis, x (rows, C) -> same; rows: B sentences x k beams."""

    def __init__(self, layer: nn.Module, index: int, cache: DecoderCache):
        self.index, self.cache = index, cache
        own = layer.self_attn
        self.own, self.ffn = _Branch(layer, "self_attn", own.inner), _Branch(layer, "ffn", layer.inner)
        self.own_in = _projection(own.q_proj, own.k_proj, own.v_proj)
        self.own_out, self.fc1, self.fc2 = (_projection(linear) for linear in (own.out_proj, layer.fc1, layer.fc2))
        self.cross = _CrossAttention(layer, index, cache) if "encoder_attn" in layer.sites else None
        between = (layer.hidden, layer.activation_dropout)
        self.hidden, self.activation_dropout = (called(module) for module in between)
        self.activation = layer.activation_fn
        self.dropout = _probability(own)

    def __call__(self, x: Tensor, mask: Tensor | None, alignment: list | None = None) -> Tensor:
        """mask (B, 1, k, prefix) as the cache gives it; alignment takes the cross-attention (B, k, S), if asked."""
        cache = self.cache
        q, keys, values = cache.append(self.index, self.own_in(self.own.enter(x)))
        x = self.own.leave(x, _attend(q, keys, values, mask, self.dropout), self.own_out)
        if self.cross is not None:
            x = self.cross(x, alignment)
        h = self.fc1(self.ffn.enter(x))
        for function in (self.hidden, self.activation, self.activation_dropout):
            h = h if function is None else function(h)
        return self.ffn.leave(x, h, self.fc2)


class _CrossAttention:
    """The branch that attends to the source."""

    def __init__(self, layer: nn.Module, index: int, cache: DecoderCache):
        self.index, self.cache = index, cache
        attention = layer.encoder_attn
        self.branch = _Branch(layer, "encoder_attn", attention.inner)
        self.enter, self.leave = _projection(attention.q_proj), _projection(attention.out_proj)
        self.dropout = _probability(attention)

    def __call__(self, x: Tensor, alignment: list | None) -> Tensor:
        mask = self.cache.memory_mask
        q, keys, values = self.cache.source(self.index, self.enter(self.branch.enter(x)))
        if alignment is not None:
            alignment.append(attention_weights(q, keys, mask))
        return self.branch.leave(x, _attend(q, keys, values, mask, self.dropout), self.leave)


def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """q (B, h, k, d), keys and values (B, h, S, d) -> (rows, C)."""
    y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, dropout_p=dropout)
    return y.transpose(1, 2).reshape(q.size(0) * q.size(2), -1)


def _probability(attention: nn.Module) -> float:
    return attention.dropout.p if _drops(attention.dropout) else 0.0


class _Branch:
    """What surrounds a branch of a layer: LayerNorm, the method's slots, dropout, shortcut."""

    def __init__(self, layer: nn.Module, sublayer: str, inner: nn.Module | None):
        before, outer, residual, norm = layer.around(sublayer)
        norms = {layer.norm_place: called(norm)}
        self.entrance = [f for f in (norms.get("pre"), called(before)) if f is not None]
        self.inner, self.residual = called(inner), called(residual)
        self.exit = [f for f in (called(outer), called(layer.dropout)) if f is not None]
        self.norm = norms.get("post")

    def enter(self, x: Tensor) -> Tensor:
        for function in self.entrance:
            x = function(x)
        return x

    def leave(self, x: Tensor, f: Tensor, matrix: Callable) -> Tensor:
        """Shortcut x and what the branch's last matrix reads -> output of the sublayer."""
        f = matrix(f if self.inner is None else self.inner(f))
        for function in self.exit:
            f = function(f)
        assert self.residual is not None  # every branch has one
        x = self.residual(x, f)
        return x if self.norm is None else self.norm(x)


def called(module: nn.Module | None) -> Callable | None:
    """How to call a module without the cost of nn.Module's own call; None for one that does nothing here.

    One that hooks watch is called as ever.
    """
    if module is None or (isinstance(module, FairseqDropout) and not _drops(module)):
        return None
    if watched(module):
        return module
    if type(module) is nn.LayerNorm:
        shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
    return module.forward


def _drops(dropout: FairseqDropout) -> bool:
    return dropout.p > 0 and (dropout.training or dropout.apply_during_inference)


def _projection(*linears: nn.Linear) -> Callable[[Tensor], Tensor]:
    """x (rows, in) -> the outputs side by side."""
    if watched(*linears):
        return lambda x: torch.cat([linear(x) for linear in linears], -1)
    return _matrix(*(pack(*linears) if len(linears) > 1 else (linears[0].weight, linears[0].bias)))


def _matrix(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """x (rows, in) -> (rows, out). A CPU multiplies few rows faster by the weight as it lies transposed."""
    if weight.is_cpu:
        weight = weight.t().contiguous()
        return partial(torch.mm, mat2=weight) if bias is None else lambda x: torch.addmm(bias, x, weight)
    return lambda x: F.linear(x, weight, bias)
