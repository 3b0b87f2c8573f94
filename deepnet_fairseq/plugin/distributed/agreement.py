"""One answer from all ranks of a training; a training by one process answers itself.

What one rank asks here all ask, in the same order: each function but `several` and `is_first` waits for the others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import distributed

from ...errors import UserError


def several() -> bool:
    """Is there more than one rank?"""
    return distributed.is_initialized() and distributed.get_world_size() > 1


def is_first() -> bool:
    """Is this the rank that writes and logs?"""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def from_first(ask: Callable[[], object]):
    """What ask() answers on the first rank, on every rank; a UserError there is one everywhere."""
    if not several():
        return ask()
    found = [None, None]  # the answer, or what is wrong
    if is_first():
        try:
            found[0] = ask()
        except UserError as error:
            found[1] = str(error)
    distributed.broadcast_object_list(found, 0)
    if found[1] is not None:
        raise UserError(found[1])
    return found[0]


def gathered(mine) -> list:
    """Everybody's `mine`, by rank; something that can be pickled."""
    if not several():
        return [mine]
    found = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, mine)
    return found


def largest(number: int, device: torch.device) -> int:
    """The largest of the ranks' numbers, on every rank. device: where the backend sends from, the trainer's."""
    if not several():
        return number
    numbers = torch.tensor([number], dtype=torch.int32, device=device)
    distributed.all_reduce(numbers, distributed.ReduceOp.MAX)
    return int(numbers.item())


def summed(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The sum of the ranks' tensors, on every rank. device: where the backend sends from, the trainer's."""
    if not several():
        return numbers
    found = numbers.to(device, copy=True)
    distributed.all_reduce(found)
    return found.to(numbers.device)


def meet() -> None:
    """Returns when all are here: what kills the others when one process ends must not cut short what rank 0 writes."""
    if several():
        distributed.barrier()
