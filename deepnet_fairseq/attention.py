"""Multi-head attention, batch first.

Shapes: B sentences, T queries, S keys, C width, h heads, d = C / h.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from .linear import Linear

Packed = tuple[Tensor, Tensor | None]  # weight and bias of several projections of one input, one below the other


class Attention(nn.Module):
    """Scaled dot-product attention to keys and values that the caller projects (and may cache).

    dim: width C of queries and output; source_dim: width of what keys and values are made from;
    inner: the method's module in front of out_proj, if any; bias: do the four matrices have one?
    """

    def __init__(self, dim: int, num_heads: int, dropout: float, source_dim: int, inner=None, bias=True):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.k_proj = Linear(source_dim, dim, bias=bias)
        self.v_proj = Linear(source_dim, dim, bias=bias)
        self.q_proj = Linear(dim, dim, bias=bias)
        self.out_proj = Linear(dim, dim, bias=bias)
        self.inner = inner
        self.dropout = FairseqDropout(dropout, module_name="MultiheadAttention")

    def weights(self) -> dict[str, nn.Linear]:
        """The branch's matrices by role."""
        return {"q": self.q_proj, "k": self.k_proj, "v": self.v_proj, "out": self.out_proj}

    def pack(self, *linears: nn.Linear) -> Packed:
        """Several of the matrices as one, for one product instead of several; the parameters stay as they are."""
        bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
        return torch.cat([linear.weight for linear in linears]), bias

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, C) -> queries, keys and values of self-attention, each (B, h, T, d)."""
        return self._split(F.linear(x, *self.pack(self.q_proj, self.k_proj, self.v_proj)))

    def queries(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, h, T, d)."""
        return self._split(self.q_proj(x))[0]

    def keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, C) -> keys and values, each (B, h, S, d)."""
        return self._split(F.linear(source, *self.pack(self.k_proj, self.v_proj)))

    def forward(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, causal=False) -> Tensor:
        """Queries (B, h, T, d), keys and values (B, h, S, d) -> output (B, T, C).

        mask: broadcastable to (B, h, T, S), bool, True where a query may look, or numbers to add to its scores;
        causal: mask the future instead.
        """
        dropout = self.dropout.p if self.dropout.training or self.dropout.apply_during_inference else 0.0
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        y = y.transpose(1, 2).flatten(2)  # (B, h, T, d) -> (B, T, C)
        if self.inner is not None:
            y = self.inner(y)
        return self.out_proj(y)

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, S, n C) of n packed projections -> n times (B, h, S, d)."""
        return x.unflatten(-1, (-1, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)


def attention_weights(q: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(q k / sqrt(d)) averaged over heads, (B, T, S): what alignments are read from, without dropout.

    mask: numbers to add to the scores, as the cache holds it, or bool, True where a query may look.
    """
    scores = torch.matmul(q, keys.transpose(2, 3)).float() * q.size(-1) ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1).mean(1)
