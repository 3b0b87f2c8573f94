"""One answer from all ranks of a training; also without any."""

from __future__ import annotations

import torch


def first() -> bool:
    """Is this the rank that writes?"""
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


def gathered(mine) -> list:
    """Everybody's `mine`, by rank; plain data."""
    if not torch.distributed.is_initialized():
        return [mine]
    found = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, mine)
    return found


def of_first(mine):
    """Rank 0's `mine`."""
    if not torch.distributed.is_initialized():
        return mine
    found = [mine]
    torch.distributed.broadcast_object_list(found, 0)
    return found[0]


def together() -> None:
    """Returns when all are here: what kills the others when one process ends must not cut short what rank 0 writes."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
