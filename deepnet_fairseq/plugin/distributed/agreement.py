"""Collectives over all ranks of a training: broadcast, all-gather, maximum, barrier.

All ranks must make the same calls in the same order, because each collective waits for the others; has_several_ranks
and is_first are no collectives. In a training of one process each call returns at once, with that process's value; only
cpu_group needs a process group.
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


def broadcast_from_first(function: Callable[[], object]):
    """Call function() on rank 0 only, and return its result, which must be picklable, on every rank.

    A UserError of the function is raised on every rank. Any other error is raised on rank 0 alone, while the other
    ranks wait.
    """
    if not has_several_ranks():
        return function()
    result: object = None
    mistake: str | None = None
    if is_first():
        try:
            result = function()
        except UserError as error:
            mistake = str(error)

    result_and_mistake = [result, mistake]
    distributed.broadcast_object_list(result_and_mistake, 0)  # on other ranks this replaces the list's entries
    result, mistake = result_and_mistake
    if mistake is not None:
        raise UserError(mistake)
    return result


def all_gather(mine, group=None) -> list:
    """Return the list of the ranks' values of `mine`, which must be picklable, in the order of ranks.

    group: over which they are sent, cpu_group() or None for the default group.
    """
    if not has_several_ranks():
        return [mine]
    gathered = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, mine, group=group)
    return gathered


def cpu_group():
    """Return a group of all ranks that exchanges what is on the CPU, by gloo; all ranks must call this.

    The default group is returned if it is gloo's, else a new one is made. Meanwhile gloo may wait forever for a process
    that is killed in the same moment.
    """
    if distributed.get_backend() == "gloo":
        return distributed.group.WORLD
    return distributed.new_group(backend="gloo")


def largest(number: int, device: torch.device) -> int:
    """Return the largest of the ranks' values of `number`, which must fit into 32 bits.

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
