"""Multi-head attention, batch first.

B sentences, h heads of d features, T queries, S keys, C = h d width of queries and output, C' width of what keys and
values are computed from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .modules import Dropout, additive_mask, empty_linear
from .slots import or_empty

if TYPE_CHECKING:
    from .cache import DecoderCache


def leave_cudnn_out() -> None:
    """Turn off cuDNN's attention kernel in this process.

    From cuDNN 9.15 on torch prefers it on Hopper GPUs in half precision. It needs half a second for each new shape of
    its input, and batches of sentences come in hundreds of shapes.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


class Attention(nn.Module):
    """Scaled dot-product attention with several heads (Vaswani et al. 2017, section 3.2).

    dim: C, a multiple of num_heads; dropout: probability of dropping an attention weight; source_dim: C'; inner, heads:
    the method's modules for these slots (methods/base.py), None for the identity; bias: whether the four matrices have
    a bias.
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
        # in fairseq's order, because optimisers number parameters by it
        self.k_proj = empty_linear(source_dim, dim, bias)
        self.v_proj = empty_linear(source_dim, dim, bias)
        self.q_proj = empty_linear(dim, dim, bias)
        self.out_proj = empty_linear(dim, dim, bias)
        self.inner = or_empty(inner)
        self.heads = heads  # stays None: it is called with a role too, which the identity does not take
        self.dropout = Dropout(dropout, module_name="MultiheadAttention")

    def weights(self) -> dict[str, nn.Linear]:
        """Return role (see slots.Weight) -> module of the four matrices; their values are drawn in this order."""
        return {"q": self.q_proj, "k": self.k_proj, "v": self.v_proj, "out": self.out_proj}

    def forward(
        self,
        x: Tensor | None = None,
        source: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        cache: DecoderCache | None = None,
        alignment: list[Tensor] | None = None,
        **others: object,
    ) -> Tensor:
        """Attend from x (B, T, C) to source (B, S, C'), or to x itself without a source, and return (B, T, C).

        mask: broadcastable to (B, h, T, S), either bool, True where a query may look, or numbers added to the scores;
        None hides nothing. causal: each query sees keys up to its own position only; for calls without a mask.
        cache: in decoding, keys and values of earlier steps. Without `source` x are the newest tokens: their keys and
        values are added to the cache, and x attends to all that it holds. With `source` the keys and values of the
        source are computed in the first step alone.
        alignment: a list to which the attention weights (B, h, T, S), without dropout, are appended; None for none.
        Raises a TypeError without x, and for other keywords, which a caller of fairseq's MultiheadAttention may use.
        """
        if x is None or others:
            given = ", ".join(others) or "no x"
            raise TypeError(f"attention takes x, source, mask, causal, cache, alignment, batch first; given: {given}")

        q = self.by_head(self.q_proj(x), "q")
        if cache is None:
            keys, values = self.keys_and_values(x if source is None else source)
        elif source is None:
            newest_keys, newest_values = self.keys_and_values(x)
            keys, values = cache.extend(self, newest_keys, newest_values)
        else:
            keys, values = cache.of_source(self, lambda: self.keys_and_values(source))

        # (B, T, h, d) -> (B, h, T, d), as torch's attention wants it
        q = q.transpose(1, 2)
        keys = keys.transpose(1, 2)
        values = values.transpose(1, 2)
        if alignment is not None:
            alignment.append(attention_weights(q, keys, mask))

        dropout = self.dropout.p if self.dropout.drops else 0.0
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        y = y.transpose(1, 2).flatten(2)  # (B, h, T, d) -> (B, T, C)
        return self.out_proj(self.inner(y))

    def keys_and_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Project source (B, S, C') to keys and values, (B, S, h, d) each."""
        keys = self.by_head(self.k_proj(source), "k")
        values = self.by_head(self.v_proj(source), "v")
        return keys, values

    def by_head(self, projected: Tensor, role: str) -> Tensor:
        """Split a projection (B, T, C) into heads, (B, T, h, d), and apply the module of the slot `heads`, if any.

        role: what is projected, "q", "k" or "v".
        """
        sentences, length, width = projected.shape
        split = projected.view(sentences, length, self.num_heads, width // self.num_heads)
        if self.heads is None:
            return split
        return self.heads(split, role)


def attention_weights(q: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """Compute softmax(q k / sqrt(d) + mask), (B, h, T, S) in float32, from q (B, h, T, d) and keys (B, h, S, d).

    torch's attention does not return its weights, so they are computed a second time for alignments between source and
    target tokens. mask: as in Attention.forward.
    """
    scaled = q * q.size(-1) ** -0.5
    scores = torch.matmul(scaled, keys.transpose(2, 3)).float()
    if mask is not None:
        scores = scores + additive_mask(mask, scores.dtype)
    return scores.softmax(-1, dtype=torch.float32)
