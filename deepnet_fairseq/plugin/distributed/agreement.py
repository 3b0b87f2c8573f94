"""Collectives over all ranks of a training: broadcast, all-gather, maximum, barrier.

All ranks must make the same calls in the same order, because each collective waits for the others; has_several_ranks
and is_first are none. A training of one process returns from them at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import distributed

from ...errors import UserError


def has_several_ranks() -> bool:
    """Return whether there is more than one rank."""
    return distributed.is_initialized() and distributed.get_world_size() > 1


def is_first() -> bool:
    """Return whether this is rank 0, which writes and logs."""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def broadcast_from_first(ask: Callable[[], object]):
    """Call ask() on rank 0 and broadcast its result; raise its UserError on every rank."""
    if not has_several_ranks():
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
    """Return the list of what all ranks have given as `mine`, which must be picklable, in the order of ranks."""
    if not has_several_ranks():
        return [mine]
    gathered = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, mine)
    return gathered


def largest(number: int, device: torch.device) -> int:
    """Return the largest of the numbers (of 32 bits) that the ranks have given.

    device: the trainer's; NCCL sends tensors on a GPU only, gloo those on the CPU.
    """
    if not has_several_ranks():
        return number
    numbers = torch.tensor([number], dtype=torch.int32, device=device)
    distributed.all_reduce(numbers, distributed.ReduceOp.MAX)
    return int(numbers.item())


def barrier() -> None:
    """Wait until all ranks have called this."""
    if has_several_ranks():
        distributed.barrier()
