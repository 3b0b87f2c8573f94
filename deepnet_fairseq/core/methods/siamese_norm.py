"""SiameseNorm: o = f(LN(x + LN(y))); x' = LN(x + o / sqrt(2l)) and y' = y + o side by side, from LN(emb) and emb.

Li et al. 2026, "SiameseNorm: Breaking the Barrier to Reconciling Pre/Post-Norm" (arXiv 2602.08064); at the end
LN(x + LN(y)). Evidence from language models of 0.4 to 15 billion parameters and vision, none from translation. 2l is
the number of branches down to layer l, its own included: 3l, which is ours, in a decoder with cross-attention. Each
LayerNorm has its own parameters, three a branch. As in the authors' code for vision, where x is normalised at the entry
of every branch, so on the embedding too, and before the end. Their language models have HybridNorm's attention besides,
left out here: norms on heads, none on the input of attention.
"""

import torch
from torch import nn

from ..slots import TwoSums
from .base import Method, register


class Fork(nn.Module):
    """Beginning of a stack: emb (.., C) -> LN(emb) and emb (.., 2C)."""

    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, embedding):
        return torch.cat([self.norm(embedding), embedding], -1)


class StreamMerge(nn.Module):
    """Input of a branch and end of a stack: x and y (.., 2C) -> LN(x + LN(y)) (.., C)."""

    def __init__(self, dim: int):
        super().__init__()
        self.inner, self.outer = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, streams):
        x, y = streams.chunk(2, -1)
        return self.outer(x + self.inner(y))


@register("siamese_norm")
class SiameseNorm(Method):
    """Post-LN stream and Pre-LN stream around the same branches."""

    title = "SiameseNorm"
    equation = "LN(x + o / sqrt(2l)) and y + o, o = f(LN(x + LN(y)))"
    paper = "Li et al. 2026"
    norm = "none"

    def stream_width(self, stack, dim):
        return 2 * dim

    def beginning(self, stack, dim):
        return Fork(dim)

    def before(self, site):
        return StreamMerge(site.dim)

    def residual(self, site):
        return TwoSums(site.dim, (len(self.sublayers(site.stack)) * site.layer) ** -0.5, 1)

    def coefficients(self, stack):
        """Return the factor of the last layer's branches."""
        return {"last_layer": self.branches(stack) ** -0.5}

    def ending(self, stack, dim):
        return StreamMerge(dim)
