"""ResiDual: two residual streams x' = LN(x + f(x)) and r' = r + s f(x), from the embedding e: x = e, r = s e.

A stack returns x + LN(r). The streams are stored side by side in one tensor (.., 2C), C features each.

Xie et al. 2023, "ResiDual: Transformer with Dual Residual Connections" (arXiv 2304.14802); evidence from translation,
up to 18L-18L. s, 1 unless given, keeps r below fp16's largest number: LN(r) is the same for all s but for its epsilon,
which is 1e-7 as in the authors' code; the other LayerNorms have 1e-5 there and here. The code's factor on x at the end,
1 by default, and an s for each stack are left out.
"""

import math

from torch import nn

from ...errors import UserError
from ..slots import Copies, TwoSums
from .base import Method, Option, register


class First(nn.Module):
    """Input of a branch: x and r (.., 2C) -> x (.., C)."""

    def forward(self, streams):
        return streams.chunk(2, -1)[0]


class StreamMerge(nn.Module):
    """End of a stack: x and r (.., 2C) -> x + LN(r) (.., C)."""

    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-7)

    def forward(self, streams):
        x, r = streams.chunk(2, -1)
        return x + self.norm(r)


@register("resi_dual")
class ResiDual(Method):
    """Post-LN with a second stream that no LayerNorm scales; UserError for a --resi-dual-scale that is not above 0."""

    title = "ResiDual"
    equation = "LN(x + f(x)) and r + s f(x), x + LN(r) at the end"
    paper = "Xie et al. 2023"
    norm = "none"  # TwoSums and StreamMerge have the LayerNorms
    options = {"scale": Option(1.0, "s, factor on the second stream; below 1 against overflow in fp16")}

    def check(self):
        if not 0 < self.scale < math.inf:
            raise UserError(f"{self.flag('scale')} {self.scale}", "must be a number above 0")

    def stream_width(self, stack, dim):
        return 2 * dim

    def beginning(self, stack, dim):
        return Copies(1, self.scale)  # x = e and r = s e

    def before(self, site):
        return First()

    def residual(self, site):
        return TwoSums(site.dim, a=1, b=self.scale)  # factors on f in the sums of x and of r

    def ending(self, stack, dim):
        return StreamMerge(dim)

    def constants(self, stack):
        return {"scale": self.scale} if self.scale != 1 else {}
