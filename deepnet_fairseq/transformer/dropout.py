"""Dropout that a CPU draws four at a time: torch draws a double for each number, a fifth of a narrow layer's time."""

from __future__ import annotations

import torch
from fairseq.modules import FairseqDropout
from torch import Tensor

RESOLUTION = 2**16  # probabilities are multiples of 1 / RESOLUTION on a CPU; what is kept is scaled by the exact one


class Dropout(FairseqDropout):
    """fairseq's dropout, with its flags and torch's random generator, from 16 random bits a number on a CPU.

    There p is rounded to a multiple of 2^-16; what is kept is scaled to that, so the mean is exact.
    """

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """x of any shape -> same, each number zero with probability p and else x / (1 - p)."""
        if not x.is_cpu or not self.p or not (self.training or self.apply_during_inference):
            return super().forward(x, inplace)
        return x * noise(x, self.p)


def noise(x: Tensor, p: float) -> Tensor:
    """Shaped like x: 0 with probability p, else 1 / (1 - p)."""
    dropped = round(p * RESOLUTION)
    scale = RESOLUTION / (RESOLUTION - dropped)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device="cpu").random_(-(2**63), None)
    numbers = words.view(torch.int16)[: x.numel()].view(x.shape).to(torch.float32)  # -2^15 to 2^15 - 1
    kept = numbers.add_(RESOLUTION // 2 - dropped + 1).mul_(scale).clamp_(0, scale)
    return kept.to(x.dtype)
