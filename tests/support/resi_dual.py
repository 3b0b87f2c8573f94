"""ResiDual: LN(x + f(x)) in one stream and d + f(x) in a second one, which meet at the end in x + LN(d).

Xie et al. 2023, "ResiDual: Transformer with Dual Residual Connections", section 3.1; x = d = embedding at first. The
authors' code has eps 1e-7 and scales d down under fp16; here eps is 1e-5 and d is not scaled.
"""

import torch
from torch import nn

from deepnet_fairseq.core.methods.base import Method, register


class Twice(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, y, history):
        return torch.cat([y, y], -1) if y.size(-1) == self.dim else y  # what the embedding gave, or a layer


class First(nn.Module):
    def forward(self, xd):
        return xd.chunk(2, -1)[0]


class WithNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)


class Sums(WithNorm):
    def forward(self, xd, f):
        x, d = xd.chunk(2, -1)
        return torch.cat([self.norm(x + f), d + f], -1)

    def added(self, xd, f):
        return f, xd.chunk(2, -1)[0] + f


class Meeting(WithNorm):
    def forward(self, xd):
        x, d = xd.chunk(2, -1)
        return x + self.norm(d)


@register("resi_dual")
class ResiDual(Method):
    equation = "LN(x + f(x)) and d + f(x), at the end x + LN(d)"
    paper = "Xie et al. 2023"
    norm = "none"

    def stream_width(self, stack, dim):
        return 2 * dim

    def mixer(self, stack, dim):
        return Twice(dim)

    def before(self, site):
        return First()

    def residual(self, site):
        return Sums(site.dim)

    def ending(self, stack, dim):
        return Meeting(dim)
