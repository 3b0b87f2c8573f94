"""SiameseNorm: two residual streams x' = LN(x + o / sqrt(2l)) and y' = y + o, with o = f(LN(x + LN(y))).

Li et al. 2026, "SiameseNorm: Breaking the Barrier to Reconciling Pre/Post-Norm" (arXiv 2602.08064). The streams are
stored side by side in one tensor (.., 2C), C features each. They begin as LN(e) and e, e the embedding, and a stack
returns LN(x + LN(y)). Evidence from language models of 0.4 to 15 billion parameters and vision, none from translation.
2l is the number of branches in the layers up to layer l. In a decoder with cross-attention it is 3l, which is ours.
Each LayerNorm has its own parameters; there are three for each branch. Where they stand follows the authors' code for
vision, which normalises x at the entry of every branch, so on the embedding too, and before the end. Their language
models also have HybridNorm's attention, left out here: norms on heads, none on the input of attention.
"""

import torch
from torch import nn

from ..slots import TwoSums
from .base import Method, register


class Fork(nn.Module):
    """Beginning of a stack: embedding e (.., C) -> LN(e) and e side by side (.., 2C)."""

    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, embedding):
        return torch.cat([self.norm(embedding), embedding], -1)


class StreamMerge(nn.Module):
    """Input of a branch, and end of a stack: x and y side by side (.., 2C) -> LN(x + LN(y)) (.., C)."""

    def __init__(self, dim: int):
        super().__init__()
        self.inner = nn.LayerNorm(dim)
        self.outer = nn.LayerNorm(dim)

    def forward(self, streams):
        x, y = streams.chunk(2, -1)
        return self.outer(x + self.inner(y))


@register("siamese_norm")
class SiameseNorm(Method):
    """Two residual streams around the same branches: x, which is Post-LN, and y, which is Pre-LN."""

    title = "SiameseNorm"
    equation = "LN(x + o / sqrt(2l)) and y + o, o = f(LN(x + LN(y)))"
    paper = "Li et al. 2026"
    norm = "none"  # Fork, StreamMerge and TwoSums have the LayerNorms

    def stream_width(self, stack, dim):
        return 2 * dim

    def beginning(self, stack, dim):
        return Fork(dim)

    def before(self, site):
        return StreamMerge(site.dim)

    def residual(self, site):
        branches_so_far = len(self.sublayers(site.stack)) * site.layer  # 2l or 3l
        return TwoSums(site.dim, a=branches_so_far**-0.5, b=1)  # factors on o in the sums of x and of y

    def coefficients(self, stack):
        """Return the factor on o in the sum of x in the last layer."""
        return {"last_layer": self.branches(stack) ** -0.5}

    def ending(self, stack, dim):
        return StreamMerge(dim)
