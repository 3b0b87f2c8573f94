"""Multi-head attention, batch first.

Shapes: B sentences, T queries, S keys, C width, h heads, d = C / h.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from .linear import Linear


class Attention(nn.Module):
    """Scaled dot-product attention over keys and values that the caller projects (and may cache).

    dim: width C of queries and output; source_dim: width of what keys and values are made from;
    inner: the method's module in front of out_proj, if any; bias: do the four matrices have one?
    """

    def __init__(self, dim: int, num_heads: int, dropout: float, source_dim: int, inner=None, bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.k_proj = Linear(source_dim, dim, bias=bias)
        self.v_proj = Linear(source_dim, dim, bias=bias)
        self.q_proj = Linear(dim, dim, bias=bias)
        self.out_proj = Linear(dim, dim, bias=bias)
        self.inner = inner
        self.dropout = FairseqDropout(dropout, module_name="MultiheadAttention")

    def weights(self) -> dict[str, nn.Linear]:
        """The branch's matrices by role."""
        return {"q": self.q_proj, "k": self.k_proj, "v": self.v_proj, "out": self.out_proj}

    def keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, C) -> keys and values, each (B, h, S, d)."""
        return self._split(self.k_proj(source)), self._split(self.v_proj(source))

    def forward(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """x (B, T, C) -> output (B, T, C) and, if asked, attention averaged over heads (B, T, S).

        mask: bool, broadcastable to (B, h, T, S), True where a query may look; causal: mask the future instead.
        """
        q = self._split(self.q_proj(x))
        dropout = self.dropout.p if self.dropout.training or self.dropout.apply_during_inference else 0.0
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        y = y.transpose(1, 2).flatten(2)  # (B, h, T, d) -> (B, T, C)
        if self.inner is not None:
            y = self.inner(y)
        weights = attention_weights(q, keys, mask) if need_weights else None
        return self.out_proj(y), weights

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, S, C) -> (B, h, S, d)


def attention_weights(q: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(q k / sqrt(d)) averaged over heads, (B, T, S): what alignments are read from, without dropout."""
    scores = torch.matmul(q, keys.transpose(2, 3)).float() * q.size(-1) ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1).mean(1)
