"""Static hyper-connections of two streams X: X' = R X + w f(LN(r X)), R (2, 2), w and r (2) learned; then LN(x + x').

Zhu et al. 2024, "Hyper-Connections", section 2: at first R = I, w = 1, feed-forward reads the second stream and
attention the first.
"""

import torch
from torch import nn

from deepnet_fairseq.core.methods.base import Method, register
from deepnet_fairseq.core.slots import Copies, FullPrecision


class Shares(FullPrecision):
    """n streams (.., nC) -> m streams (.., mC), by a matrix (m, n)."""

    def __init__(self, first):
        super().__init__()
        self.share = nn.Parameter(first)

    def forward(self, streams):
        return (self.share.to(streams.dtype) @ streams.unflatten(-1, (self.share.size(1), -1))).flatten(-2)


class Write(nn.Module):
    def __init__(self):
        super().__init__()
        self.keep, self.write = Shares(torch.eye(2)), Shares(torch.ones(2, 1))

    def forward(self, streams, f):
        return self.keep(streams) + self.write(f)


@register("hyper_connections")
class HyperConnections(Method):
    equation = "R X + w f(LN(r X)), two streams X"
    paper = "Zhu et al. 2024"
    norm = "none"

    def stream_width(self, stack, dim):
        return 2 * dim

    def beginning(self, stack, dim):
        return Copies(1, 1)

    def before(self, site):
        stream = torch.eye(2)[int(site.sublayer == "ffn"), None]
        return nn.Sequential(Shares(stream), nn.LayerNorm(site.dim))

    def residual(self, site):
        return Write()

    def ending(self, stack, dim):
        return nn.Sequential(Shares(torch.ones(1, 2)), nn.LayerNorm(dim))
