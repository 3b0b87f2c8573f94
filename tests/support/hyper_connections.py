"""Static hyper-connections of two streams X: X' = X + w f(LN(r X)), numbers w and r (2) learned; at the end LN(v X).

Zhu et al. 2024, "Hyper-Connections", section 2, less their mixing of streams: w, v = 1 at first, and feed-forward reads
the second stream, attention the first.
"""

import torch
from torch import nn

from deepnet_fairseq.core.methods.base import Method, register
from deepnet_fairseq.core.slots import Copies


class Read(nn.Module):
    def __init__(self, dim, first):
        super().__init__()
        self.r, self.norm = nn.Parameter(torch.tensor(first)), nn.LayerNorm(dim)

    def forward(self, streams):
        return self.norm((self.r.unsqueeze(-1) * streams.unflatten(-1, (2, -1))).sum(-2))


class Write(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, streams, f):
        return streams + (self.w.unsqueeze(-1) * f.unsqueeze(-2)).flatten(-2)


@register("hyper_connections")
class HyperConnections(Method):
    equation = "X + w f(LN(r X)), two streams X"
    paper = "Zhu et al. 2024"
    norm = "none"

    def stream_width(self, stack, dim):
        return 2 * dim

    def beginning(self, stack, dim):
        return Copies(1, 1)

    def before(self, site):
        return Read(site.dim, [0.0, 1.0] if site.sublayer == "ffn" else [1.0, 0.0])

    def residual(self, site):
        return Write()

    def ending(self, stack, dim):
        return Read(dim, [1.0, 1.0])
