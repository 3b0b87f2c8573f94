"""What the ranks of a training agree on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from fairseq.distributed import utils as distributed_utils

from ..errors import UserError


def several(trainer) -> bool:
    """Is there more than one rank?"""
    return trainer.data_parallel_world_size > 1


def is_first(trainer) -> bool:
    """Is this the rank that writes and logs?"""
    return trainer.data_parallel_rank == 0


def from_first(trainer, ask: Callable[[], object]):
    """What ask() answers on the first rank, on every rank; a UserError there is one everywhere."""
    if not several(trainer):
        return ask()
    answer = mistake = None
    if is_first(trainer):
        try:
            answer = ask()
        except UserError as error:
            mistake = str(error)
    answer, mistake = distributed_utils.broadcast_object(
        (answer, mistake), src_rank=0, group=trainer.data_parallel_process_group, dist_device=trainer.device
    )
    if mistake is not None:
        raise UserError(mistake)
    return answer


def largest(trainer, number: int) -> int:
    """The largest of the ranks' numbers, on every rank."""
    if not several(trainer):
        return number
    numbers = torch.tensor([number], dtype=torch.int32, device=trainer.device)
    distributed_utils.all_reduce(numbers, group=trainer.data_parallel_process_group, op="max")
    return int(numbers.item())


def meet(trainer) -> None:
    """Waits for the other ranks."""
    largest(trainer, 0)
