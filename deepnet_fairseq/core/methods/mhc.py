"""mHC, manifold-constrained hyper-connections: X' = H_res X + H_post f(LN(H_pre X)).

Xie et al. 2025, "mHC: Manifold-Constrained Hyper-Connections" (arXiv 2512.24880), section 4; evidence from decoder
language models of 3 to 27 billion parameters only. X (n, C) are n residual streams of a token, here side by side (nC).
The three H follow from X itself: each is a function of h = a phi RMSNorm(vec X) + b, phi a matrix, a a number and b in
the shape of the H, all learned:

    H_pre (1, n)   sigmoid(h)
    H_post (n, 1)  2 sigmoid(h)
    H_res (n, n)   exp(h), made doubly stochastic by 20 steps of Sinkhorn, in which columns, then rows are divided by
                   their sums; a step is computed as two log-softmax

Parameters and computation of an H are float32. n = 4 and a = 0.01 at first are the paper's. b at first is ours: 4 and
-4 where the hyper-connections that mHC starts from (Zhu et al. 2024) begin with 1 and 0, and 0 for H_post; phi is 0. So
branch k reads stream k mod n by 0.98 and others by 0.02, H_res is nearly I, H_post 1, and the model begins as Pre-LN.
The stack ends with another LN(H_pre X), as in the authors' DeepSeek-V4, with b = 0 at first; hyper-connections sum the
streams.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError
from ..modules import without_autocast
from ..slots import Copies, FullPrecision
from .base import Method, Option, register

STEPS = 20  # iterations of Sinkhorn


def towards_identity(streams: int) -> Tensor:
    """Return the b (n, n) from which an H begins near I: 4 on the diagonal, -4 elsewhere; streams: n.

    H_pre has one row of it, whose sigmoids are 0.98 and 0.02. H_res has all of it: rows of exp(b), divided by their
    sums, have exp(-8) = 0.0003 beside the diagonal.
    """
    rows = []
    for diagonal in range(streams):
        row = [-4.0] * streams
        row[diagonal] = 4.0
        rows.append(row)
    return torch.tensor(rows)


class Mappings(FullPrecision, nn.Linear):
    """Map X (.., nC) to h = a phi RMSNorm(X) + b for one or several H, which share RMSNorm(X).

    forward returns a list with the h of each H, float32, in the shape of its b behind the dimensions of X: (.., *b).
    width: nC; bs: the b of each H at first. The matrices phi of all H are this nn.Linear's weight, one below the other,
    their b its bias, and their a the vector a.
    """

    def __init__(self, width: int, *bs: Tensor):
        sizes = [b.numel() for b in bs]
        super().__init__(width, sum(sizes))
        self.shapes = [b.shape for b in bs]
        self.a = nn.Parameter(torch.full((len(bs),), 0.01))
        nn.init.zeros_(self.weight)

        # one bias holds all b, flat and one behind the other
        parts = self.bias.data.split(sizes)
        for part, b in zip(parts, bs, strict=True):
            part.copy_(b.flatten())

    def reset_parameters(self) -> None:
        """Draw nothing: __init__ fills the matrix."""

    def forward(self, streams: Tensor) -> list[Tensor]:  # type: ignore[override]  # several maps in one matrix
        with without_autocast(streams):
            streams = streams.to(self.weight.dtype)
            mean_square = torch.linalg.vecdot(streams, streams).unsqueeze(-1) / streams.size(-1)
            # phi RMSNorm(X) is computed as phi X / RMS(X), which divides fewer numbers; 1e-6 is the RMSNorm's epsilon
            products = F.linear(streams, self.weight) * (mean_square + 1e-6).rsqrt()

        # h of each H, from its b, a and phi RMSNorm(X), in the shape of b
        sizes = [shape.numel() for shape in self.shapes]
        biases = self.bias.split(sizes)
        parts = products.split(sizes, dim=-1)
        maps = []
        for b, a, part, shape in zip(biases, self.a, parts, self.shapes, strict=True):
            flat = torch.addcmul(b, a, part)
            maps.append(flat.unflatten(-1, shape))
        return maps


def sinkhorn(logits: Tensor) -> Tensor:
    """Return exp(logits), (.., n, n), made doubly stochastic: STEPS times columns, then rows are divided by their sums.

    Rows sum to 1 in the end, columns nearly.
    """
    h = logits.movedim((-2, -1), (0, 1))  # (n, n, ..): a CPU is ten times as fast along tokens
    for _ in range(STEPS):
        h = h.log_softmax(0).log_softmax(1)  # columns: over the index of the row; rows: over that of the column
    return h.exp().movedim((0, 1), (-2, -1)).contiguous()


def mix(h: Tensor, streams: Tensor) -> Tensor:
    """Multiply n streams side by side (.., nC) by a matrix H (.., m, n), which makes m streams of them (.., mC)."""
    stacked = streams.unflatten(-1, (h.size(-1), -1))  # (.., n, C)
    mixed = h.to(streams.dtype) @ stacked  # (.., m, C)
    return mixed.flatten(-2)


class Read(nn.Module):
    """Read a branch's input from the streams: X (.., nC) -> LN(H_pre X) (.., C).

    dim: C; b (n,): the b of H_pre at first.
    """

    def __init__(self, dim: int, b: Tensor):
        super().__init__()
        self.h = Mappings(b.numel() * dim, b.unsqueeze(0))
        self.norm = nn.LayerNorm(dim)

    def forward(self, streams):
        (pre,) = self.h(streams)
        return self.norm(mix(pre.sigmoid(), streams))


class Write(nn.Module):
    """Residual merge of the streams and a branch: X (.., nC), f (.., C) -> H_res X + H_post f (.., nC).

    dim: C; streams: n.
    """

    def __init__(self, dim: int, streams: int):
        super().__init__()
        self.h = Mappings(streams * dim, torch.zeros(streams, 1), towards_identity(streams))

    def forward(self, streams, f):
        _branch, merged = self.branch_and_sum(streams, f)
        return merged

    def branch_and_sum(self, streams, f):
        """Return H_post f and the merged streams, (.., nC) each, which probes compare."""
        post, res = self.h(streams)
        branch = mix(2 * post.sigmoid(), f)
        shortcut = mix(sinkhorn(res), streams)
        return branch, shortcut + branch


@register("mhc")
class MHC(Method):
    """n residual streams that a Read and a Write connect with each branch; UserError for --mhc-streams below 1."""

    title = "mHC"
    equation = "H_res X + H_post f(LN(H_pre X)), n streams X, H_res doubly stochastic"
    paper = "Xie et al. 2025"
    norm = "none"
    options = {"streams": Option(4, "n, streams as wide as a branch")}

    def check(self):
        if self.streams < 1:
            raise UserError(f"{self.flag('streams')} {self.streams}", "must be at least 1")

    def stream_width(self, stack, dim):
        return self.streams * dim

    def beginning(self, stack, dim):
        return Copies(*[1] * self.streams)

    def before(self, site):
        sublayers = self.sublayers(site.stack)
        # number of the branch in its stack, from 0
        k = (site.layer - 1) * len(sublayers) + sublayers.index(site.sublayer)
        rows = towards_identity(self.streams)  # row i as b of H_pre makes a branch read stream i
        return Read(site.dim, b=rows[k % self.streams])

    def residual(self, site):
        return Write(site.dim, self.streams)

    def ending(self, stack, dim):
        return Read(dim, b=torch.zeros(self.streams))
