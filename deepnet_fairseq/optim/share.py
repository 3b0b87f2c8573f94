"""ZeRO stage 1 (Rajbhandari et al. 2020, arXiv 1910.02054).

Each process updates its share of the weights and keeps the optimiser's state of that share alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, distributed

PIECE = 2**24  # elements that are gathered at a time, in each process's share
_all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor  # before torch 2.13


class Share:
    """This process's share of vectors whose length is a multiple of the group's size."""

    def __init__(self, group):
        self.group, self.rank, self.world = group, group.rank(), group.size()

    def padded(self, length: int) -> int:
        """The next length that all can have equal shares of."""
        return -(-length // self.world) * self.world

    def span(self, length: int) -> tuple[int, int]:
        """Where the share of a vector begins and ends."""
        each = length // self.world
        return self.rank * each, (self.rank + 1) * each

    def spread(self, whole: Tensor) -> None:
        """All shares of `whole` (length,), of which each process has computed its own, everywhere."""
        start, stop = self.span(len(whole))
        _all_gather(whole, whole[start:stop].clone(), group=self.group)

    def collected(self, mine: Tensor) -> Tensor | None:
        """The whole of which `mine` is the share, on the first process's CPU, None elsewhere; a call of all."""
        whole = torch.empty(self.world, len(mine), dtype=mine.dtype) if self.rank == 0 else None
        for start in range(0, len(mine), PIECE):
            piece = mine[start : start + PIECE]
            found = piece.new_empty(self.world * len(piece))
            _all_gather(found, piece, group=self.group)
            if whole is not None:
                whole[:, start : start + PIECE] = found.view(self.world, -1).cpu()
        return None if whole is None else whole.view(-1)
