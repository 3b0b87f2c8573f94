"""Collectives over all ranks of a training: broadcast, all-gather, barrier; they return at once for one process.

All ranks must make the same calls in the same order: every function but `several` and `is_first` waits for the others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import distributed

from ...errors import UserError


def several() -> bool:
    """Return whether there is more than one rank."""
    return distributed.is_initialized() and distributed.get_world_size() > 1


def is_first() -> bool:
    """Return whether this is rank 0, which writes and logs."""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def broadcast_from_first(ask: Callable[[], object]):
    """Call ask() on rank 0 and broadcast its result; raise its UserError on every rank."""
    if not several():
        return ask()
    answer: object = None
    mistake: str | None = None
    if is_first():
        try:
            answer = ask()
        except UserError as error:
            mistake = str(error)

    outcome = [answer, mistake]
    distributed.broadcast_object_list(outcome, 0)  # fills the list in place
    answer, mistake = outcome
    if mistake is not None:
        raise UserError(mistake)
    return answer


def all_gather(mine) -> list:
    """Return the list of all ranks' `mine` by rank; it must be possible to pickle it."""
    if not several():
        return [mine]
    gathered = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, mine)
    return gathered


def largest(number: int, device: torch.device) -> int:
    """Return the largest of the ranks' numbers on every rank. device: the trainer's, from which the backend sends."""
    if not several():
        return number
    numbers = torch.tensor([number], dtype=torch.int32, device=device)
    distributed.all_reduce(numbers, distributed.ReduceOp.MAX)
    return int(numbers.item())


def barrier() -> None:
    """Wait for all ranks, so that rank 0 can finish writing before torchrun ends it with the others."""
    if several():
        distributed.barrier()
