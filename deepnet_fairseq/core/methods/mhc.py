"""mHC, manifold-constrained hyper-connections: X' = H_res X + H_post f(LN(H_pre X)), X n streams (n, C) of a token.

Xie et al. 2025, "mHC: Manifold-Constrained Hyper-Connections" (arXiv 2512.24880), section 4; evidence from decoder
language models of 3 to 27 billion parameters only. Each H is of a phi RMSNorm(vec X) + b, phi a matrix, a a number:
H_pre (n) through a sigmoid, H_post (n) through twice one, H_res (n, n) through exp and 20 steps of Sinkhorn, columns
then rows divided by their sums. What is learnt and computed for an H is float32; Sinkhorn's steps are log-softmax.
n = 4 and a = 0.01 at first are the paper's. b is ours: 4 and -4 where the hyper-connections that it starts from (Zhu
et al. 2024) begin with 1 and 0. So branch k reads stream k mod n by 0.98 and others by 0.02, H_res is 0.999 I,
H_post is 1, phi 0, and the model begins as Pre-LN. The end is theirs: LN of the sum of all streams.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError
from ..modules import Linear, without_autocast
from ..slots import Copies, FullPrecision
from .base import Method, Option, register

STEPS = 20  # of Sinkhorn
SURE = 4.0  # b for a 1, in size; sigmoid(4) = 0.98


class Mapping(FullPrecision, Linear):
    """X (.., nC) -> a phi RMSNorm(X) + b, float32, in the shape of b."""

    def __init__(self, width: int, b: Tensor):
        super().__init__(width, b.numel())
        self.shape, self.a = b.shape, nn.Parameter(torch.tensor(0.01))
        nn.init.zeros_(self.weight)
        self.bias.data.copy_(b.flatten())

    def forward(self, streams: Tensor) -> Tensor:
        with without_autocast(streams):
            streams = streams.float()
            scale = self.a * (streams.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
            return torch.addcmul(self.bias, F.linear(streams, self.weight), scale).unflatten(-1, self.shape)


def sinkhorn(logits: Tensor) -> Tensor:
    """exp of logits (.., n, n), then columns and rows divided by their sums, STEPS times: rows sum to 1."""
    for _ in range(STEPS):
        logits = logits.log_softmax(-2).log_softmax(-1)
    return logits.exp()


def mix(h: Tensor, streams: Tensor) -> Tensor:
    """H (.., m, n), n streams side by side (.., nC) -> m streams (.., mC)."""
    return (h.to(streams.dtype) @ streams.unflatten(-1, (h.size(-1), -1))).flatten(-2)


class Read(nn.Module):
    """X (.., nC) -> LN(H_pre X) (.., C)."""

    def __init__(self, dim: int, streams: int, stream: int):
        super().__init__()
        self.pre = Mapping(streams * dim, SURE * (2 * torch.eye(streams)[stream, None] - 1))
        self.norm = nn.LayerNorm(dim)

    def forward(self, streams):
        return self.norm(mix(self.pre(streams).sigmoid(), streams))


class Write(nn.Module):
    """X (.., nC), f (.., C) -> H_res X + H_post f (.., nC)."""

    def __init__(self, dim: int, streams: int):
        super().__init__()
        self.post = Mapping(streams * dim, torch.zeros(streams, 1))
        self.res = Mapping(streams * dim, SURE * (2 * torch.eye(streams) - 1))

    def forward(self, streams, f):
        return sum(self.parts(streams, f))

    def parts(self, streams, f):
        exact = streams.float()
        return mix(sinkhorn(self.res(exact)), streams), mix(2 * self.post(exact).sigmoid(), f)

    def added(self, streams, f):  # for probes
        kept, written = self.parts(streams, f)
        return written, kept + written


class Sum(nn.Module):
    """X (.., nC) -> LN of the sum of its streams (.., C)."""

    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, streams):
        return self.norm(streams.unflatten(-1, (-1, *self.norm.normalized_shape)).sum(-2))


@register("mhc")
class MHC(Method):
    """n streams that doubly stochastic matrices mix; UserError for --mhc-streams below 1."""

    equation = "H_res X + H_post f(LN(H_pre X)), n streams X, H_res doubly stochastic"
    paper = "Xie et al. 2025"
    norm = "none"
    options = {"streams": Option(4, "n, streams as wide as a branch")}

    def check(self):
        if self.streams < 1:
            raise UserError(f"{self.flag('streams')} {self.streams}: must be at least 1")

    def stream_width(self, stack, dim):
        return self.streams * dim

    def beginning(self, stack, dim):
        return Copies(*[1] * self.streams)

    def before(self, site):
        branches = self.sublayers(site.stack)
        branch = (site.layer - 1) * len(branches) + branches.index(site.sublayer)
        return Read(site.dim, self.streams, branch % self.streams)

    def residual(self, site):
        return Write(site.dim, self.streams)

    def ending(self, stack, dim):
        return Sum(dim)
