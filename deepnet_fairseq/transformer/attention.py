"""Multi-head attention, batch first.

Shapes: B sentences, T queries, S keys, C width, h heads, d = C / h.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .dropout import Dropout
from .linear import Linear
from .packed import project
from .products import attend, split, to_add


class Attention(nn.Module):
    """Scaled dot-product attention of many heads (Vaswani et al. 2017, section 3.2).

    Called with projections that the caller asks for, and may cache: attention(attention.project_own(x)). dim: width C
    of queries and output, a multiple of num_heads; dropout: of attention weights; source_dim: width C' of what keys and
    values are made from; inner: the method's module in front of out_proj, if any; bias: do the four matrices have one?
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float,
        source_dim: int,
        inner: nn.Module | None = None,
        bias: bool = True,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.k_proj = Linear(source_dim, dim, bias=bias)
        self.v_proj = Linear(source_dim, dim, bias=bias)
        self.q_proj = Linear(dim, dim, bias=bias)
        self.out_proj = Linear(dim, dim, bias=bias)
        self.inner = inner
        self.dropout = Dropout(dropout, module_name="MultiheadAttention")

    def weights(self) -> dict[str, nn.Linear]:
        """The branch's matrices by role, see site.Weight."""
        return {"q": self.q_proj, "k": self.k_proj, "v": self.v_proj, "out": self.out_proj}

    def project_own(self, x: Tensor) -> tuple[Tensor, ...]:
        """Self-attention's projections of x (B, T, C): queries, keys and values side by side, (B, T, 3 C)."""
        return (project(x, self.q_proj, self.k_proj, self.v_proj),)

    def project_other(self, x: Tensor, source: Tensor) -> tuple[Tensor, ...]:
        """Projections of x (B, T, C) and source (B, S, C'): queries (B, T, C), keys and values (B, S, 2 C)."""
        return self.q_proj(x), self.project_source(source).flatten(2)

    def project_source(self, source: Tensor) -> Tensor:
        """Keys and values of source (B, S, C'), (B, S, 2, h, d)."""
        return project(source, self.k_proj, self.v_proj).unflatten(-1, (2, self.num_heads, -1))

    def forward(self, packed: tuple[Tensor, ...], mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Packed projections -> output (B, T, C); masks as in products.attend."""
        dropout = self.dropout.p if self.dropout.training or self.dropout.apply_during_inference else 0.0
        y = attend(packed, self.num_heads, mask, causal, dropout)
        return self.out_proj(y if self.inner is None else self.inner(y))

    def alignment(self, packed: tuple[Tensor, ...], mask: Tensor | None) -> Tensor:
        """The attention of the same projections, averaged over heads, (B, T, S); mask as in products.attend."""
        q, keys, _values = split(packed, self.num_heads)
        return attention_weights(q, keys, mask)


def attention_weights(q: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(q k / sqrt(d)) of q (B, h, T, d) and keys (B, h, S, d), averaged over heads: (B, T, S), float32.

    What alignments are read from, without dropout; mask as in products.attend.
    """
    scores = torch.matmul(q * q.size(-1) ** -0.5, keys.transpose(2, 3)).float()
    if mask is not None:
        scores = scores + to_add(mask, scores.dtype)
    return scores.softmax(-1).mean(1)
