"""Which rows of a tensor lie on which rank: as torch.chunk deals them out, the last ranks get fewer, or none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def span(shape: Sequence[int], rank: int, world: int) -> tuple[int, int]:
    """First row and the one after the last of `rank`; a scalar is one row."""
    rows = shape[0] if shape else 1
    each = -(-rows // world)
    return min(rank * each, rows), min((rank + 1) * each, rows)


def local_shape(shape: Sequence[int], rank: int, world: int) -> torch.Size:
    """Shape of a rank's part; a scalar's is () on the first rank, (0,) on the others."""
    start, stop = span(shape, rank, world)
    if not shape:
        return torch.Size(() if stop > start else (0,))
    return torch.Size((stop - start, *shape[1:]))


def cut(tensor: Tensor, rank: int, world: int) -> Tensor:
    """A rank's part of `tensor`, a view."""
    start, stop = span(tensor.shape, rank, world)
    return tensor.reshape(1)[start:stop].view(local_shape((), rank, world)) if not tensor.dim() else tensor[start:stop]


def join(parts: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """The whole, of that shape, of what every rank has a part of; parts: by rank."""
    return torch.cat([part.reshape(-1) for part in parts]).view(tuple(shape))
