"""Multi-head attention, batch first, by the road that is fastest on the device.

B sentences, h heads, T queries, S keys, C width, d = C / h. Queries, keys and values are projections side by side:
(B, T, 3 C), or queries (B, T, C) and keys with values (B, S, 2 C). A GPU has one kernel for
softmax(q k / sqrt(d) + mask) v; on a CPU that kernel loses at the length of sentences to batched products, most of all
in the backward pass.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .modules import Dropout, Linear, autocasts, line_up, project

LONGEST = 256  # keys to which products win on a CPU; behind it their T x S weights cost memory too


def leave_cudnn_out() -> None:
    """From now on the process's attention is not cuDNN's, which makes a plan for each new shape, in half a second.

    torch takes it first in half precision on Hopper from cuDNN 9.15 on; sentences come in hundreds of shapes.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


class Attention(nn.Module):
    """Scaled dot-product attention of many heads (Vaswani et al. 2017, section 3.2).

    Called with projections that the caller asks for, and may cache: attention((project(x, *attention.own()),)).
    dim: width C of queries and output, a multiple of num_heads; dropout: of attention weights; source_dim: width C' of
    what keys and values are made from; inner, heads: the method's modules in front of out_proj and on projections by
    head, if any; bias: do the four matrices have one?
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float,
        source_dim: int,
        inner: nn.Module | None,
        heads: nn.Module | None,
        bias: bool,
    ):
        super().__init__()
        leave_cudnn_out()
        self.num_heads = num_heads
        self.k_proj = Linear(source_dim, dim, bias=bias)
        self.v_proj = Linear(source_dim, dim, bias=bias)
        self.q_proj = Linear(dim, dim, bias=bias)
        self.out_proj = Linear(dim, dim, bias=bias)
        line_up(self.q_proj, self.k_proj, self.v_proj)
        self.inner, self.heads = inner, heads
        self.dropout = Dropout(dropout, module_name="MultiheadAttention")

    def weights(self) -> dict[str, nn.Linear]:
        """The branch's matrices by role, see slots.Weight."""
        return {"q": self.q_proj, "k": self.k_proj, "v": self.v_proj, "out": self.out_proj}

    def own(self) -> tuple[nn.Linear, ...]:
        """The projections of what self-attention reads; side by side, (B, T, 3 C), they are what it is called with."""
        return self.q_proj, self.k_proj, self.v_proj

    def project_source(self, source: Tensor) -> Tensor:
        """Keys and values of source (B, S, C'), (B, S, 2, h, d)."""
        return self.by_head(project(source, self.k_proj, self.v_proj), "kv").unflatten(-1, (2, self.num_heads, -1))

    def by_head(self, projected: Tensor, roles: str) -> Tensor:
        """Projections side by side (.., n C), `roles` a letter each, through the method's module on heads -> same."""
        if self.heads is None:
            return projected
        parts = projected.unflatten(-1, (len(roles), self.num_heads, -1)).unbind(-3)
        return torch.stack([self.heads(part, role) for part, role in zip(parts, roles, strict=True)], -3).flatten(-3)

    def forward(self, packed: tuple[Tensor, ...], mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Packed projections -> output (B, T, C); masks as in attend."""
        dropout = self.dropout.p if self.dropout.drops else 0.0
        y = attend(packed, self.num_heads, mask, causal, dropout)
        return self.out_proj(y if self.inner is None else self.inner(y))

    def alignment(self, packed: tuple[Tensor, ...], mask: Tensor | None) -> Tensor:
        """The attention of the same projections, averaged over heads, (B, T, S); mask as in attend."""
        q, keys, _values = split(packed, self.num_heads)
        return attention_weights(q, keys, mask)


def attention_weights(q: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(q k / sqrt(d)) of q (B, h, T, d) and keys (B, h, S, d), averaged over heads: (B, T, S), float32.

    What alignments are read from, without dropout; mask as in attend.
    """
    scores = torch.matmul(q * q.size(-1) ** -0.5, keys.transpose(2, 3)).float()
    if mask is not None:
        scores = scores + to_add(mask, scores.dtype)
    return scores.softmax(-1).mean(1)


def attend(packed: tuple[Tensor, ...], heads: int, mask: Tensor | None, causal: bool, dropout: float) -> Tensor:
    """Packed projections -> (B, T, C).

    mask: broadcastable to (B, h, T, S), bool, True where a query may look, or numbers to add to its scores;
    causal: mask the future instead; dropout: probability of a weight to be dropped.
    """
    first, last = packed[0], packed[-1]
    if first.is_cpu and last.size(1) <= LONGEST and not dropout:
        if causal:
            mask = _future(first.size(1), first.dtype)
        elif mask is not None:
            mask = to_add(mask, first.dtype)
        return _Products.apply(mask, heads, *packed)
    q, keys, values = split(packed, heads)
    y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=causal)
    return y.transpose(1, 2).flatten(2)  # (B, h, T, d) -> (B, T, C)


def split(packed: tuple[Tensor, ...], heads: int) -> list[Tensor]:
    """Packed projections -> views of each, (B, h, T, d)."""
    parts = [one.chunk(count, -1) if count > 1 else (one,) for one, count in zip(packed, _counts(packed), strict=True)]
    views = [view for part in parts for view in part]
    return [view.unflatten(-1, (heads, -1)).transpose(1, 2) for view in views]


def to_add(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask, True where a query may look, as numbers to add to scores; others as they are.

    The lowest number instead of -inf: a query that may look nowhere is given something, not NaN. Rows lie a multiple of
    8 numbers apart, as a GPU's kernel for masks wants them; else it copies them, in each layer. dtype: of the scores,
    where autocast has no other, which it would cast them to in each layer.
    """
    if mask.dtype != torch.bool:
        return mask
    if autocasts(mask) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(mask.device.type)
    *rows, length = mask.shape
    numbers = torch.zeros(*rows, -(-length // 8) * 8, dtype=dtype, device=mask.device)[..., :length]
    return numbers.masked_fill_(~mask, torch.finfo(dtype).min)


class _Products(torch.autograd.Function):
    """Attention as two batched products and a softmax; a copy in front of and behind them, and no more."""

    @staticmethod
    def forward(ctx: Any, mask: Tensor | None, heads: int, *packed: Tensor) -> Tensor:
        counts = _counts(packed)
        q, keys, values = parts = [
            part for one, count in zip(packed, counts, strict=True) for part in _by_head(one, count, heads)
        ]
        scale, nothing = q.size(2) ** -0.5, q.new_empty(1)
        scores = torch.baddbmm(nothing, q, keys.transpose(1, 2), beta=0, alpha=scale)
        if mask is not None:
            scores.view(-1, heads, *scores.shape[1:]).add_(mask)
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(weights, *parts)
        ctx.heads, ctx.scale, ctx.counts = heads, scale, counts
        return _packed([torch.bmm(weights, values)], heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, q, keys, values = ctx.saved_tensors
        (grad,), nothing = _by_head(grad, 1, ctx.heads), q.new_empty(1)
        scores = torch.bmm(grad, values.transpose(1, 2))
        scores = torch._softmax_backward_data(scores, weights, -1, weights.dtype)
        grads = [
            torch.baddbmm(nothing, scores, keys, beta=0, alpha=ctx.scale),
            torch.baddbmm(nothing, scores.transpose(1, 2), q, beta=0, alpha=ctx.scale),
            torch.bmm(weights.transpose(1, 2), grad),
        ]
        first = ctx.counts[0]
        groups = [grads] if first == 3 else [grads[:first], grads[first:]]
        return None, None, *(_packed(group, ctx.heads) for group in groups)


def _counts(packed: tuple[Tensor, ...]) -> tuple[int, ...]:
    """How many projections each tensor holds."""
    return (3,) if len(packed) == 1 else (1, 2)


def _by_head(projection: Tensor, count: int, heads: int) -> tuple[Tensor, ...]:
    """(B, T, n C) -> n times (B h, T, d), by one copy."""
    batch, length, width = projection.shape
    by_head = projection.view(batch, length, count, heads, width // count // heads).permute(2, 0, 3, 1, 4)
    return by_head.reshape(count, batch * heads, length, -1).unbind(0)


def _packed(parts: list[Tensor], heads: int) -> Tensor:
    """n times (B h, T, d) -> (B, T, n C)."""
    rows, length, features = parts[0].shape
    batch = rows // heads
    packed = parts[0].new_empty(batch, length, len(parts), heads, features)
    views = packed.permute(2, 0, 3, 1, 4).unbind(0)
    for view, part in zip(views, parts, strict=True):
        view.copy_(part.view(batch, heads, length, features))
    return packed.view(batch, length, -1)


@lru_cache(maxsize=64)
def _future(length: int, dtype: torch.dtype) -> Tensor:
    """(T, T): -inf for what lies behind a query."""
    return torch.full((length, length), float("-inf"), dtype=dtype, device="cpu").triu_(1)
