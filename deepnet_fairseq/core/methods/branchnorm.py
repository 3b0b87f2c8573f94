"""BranchNorm: y = LN(x + a_t dropout(f(x))), a_t rising from 1/T to 1 over the first T updates; then Post-LN.

Liu et al. 2023, "BranchNorm: Robustly Scaling Extremely Deep Transformers" (arXiv:2305.02790). No code was released.
Experimental: T = 4000, the length of the usual warm-up, is our reading and is not confirmed by the paper's text. Update
t (from 0) runs with a_t = min((t + 1) / T, 1): a_0 = 0 would leave the branches without gradient. a_t is saved with
the model: a checkpoint translates with the value it was trained at.
"""

from __future__ import annotations

import torch

from ...errors import UserError
from ..slots import FullPrecision, Residual
from .base import Method, Option, register


class RisingBranch(FullPrecision, Residual):
    """Residual merge x + a f, (B, T, C) each; a = min((t + 1) / num_updates, 1) in update t, counted from 0.

    a is a buffer in float32 that checkpoints hold. In a training all these merges of a stack share it (`follow`).
    """

    def __init__(self, num_updates: int):
        super().__init__()
        self.num_updates = num_updates
        self.register_buffer("a", torch.tensor(1 / num_updates))

    def set_num_updates(self, t: int) -> None:
        """Set a for update t, counted from 0.

        Stack.set_num_updates calls this before each batch, for one RisingBranch of the stack.
        """
        self.a.fill_(min((t + 1) / self.num_updates, 1.0))

    def follow(self, first: RisingBranch) -> None:
        """Share the buffer a of `first`, the RisingBranch of the same stack whose set_num_updates was just called.

        One operation then sets a in all of them. Moving the model ends the sharing; Stack.set_num_updates calls this
        before each batch and so begins it again.
        """
        self._buffers["a"] = first.a

    def forward(self, x, f):
        return torch.addcmul(x, f, self.a.to(x.dtype))

    def scales(self):
        return 1.0, self.a


@register("branchnorm")
class BranchNorm(Method):
    """Post-LN with the factor a_t on every branch; UserError for --branchnorm-updates below 1."""

    title = "BranchNorm"
    equation = "LN(x + a_t f(x)), a_t = min((t + 1) / T, 1)"
    paper = "Liu et al. 2023"
    init_profiles = ("xavier_legacy", "fairseq_head")
    options = {"updates": Option(4000, "T, updates until a branch counts fully")}

    def check(self):
        if self.updates < 1:
            raise UserError(f"--branchnorm-updates {self.updates}", "must be at least 1")

    def residual(self, site):
        return RisingBranch(self.updates)
