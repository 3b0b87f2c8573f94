"""ZeRO stage 1 (Rajbhandari et al. 2020): each process keeps the optimiser's state of its share of the parameters."""

from __future__ import annotations

import torch
from fairseq.distributed import utils as distributed_utils
from torch import distributed, nn

BUCKET = 2**28  # bytes of weights that are sent at a time


class Shard:
    """The division of a model's parameters among the processes of a group.

    parameters: all of them, in the same order on each process; a parameter's number is its place in this list. Each
    belongs to one process; the largest are dealt out first, each to the process with the fewest elements so far. parts:
    for each process the numbers of its parameters; own: the numbers of this process's, in ascending order.

    torch's ZeroRedundancyOptimizer would keep float32 weights and gradients of the whole model on every process. In
    half precision that takes 4 + 8 + 8 / n bytes a parameter on each of n processes, instead of 4 + 16 / n: 4 for
    weight and gradient in half precision, 8 for them in float32, 8 for Adam's moments.
    """

    def __init__(self, group, parameters: list[nn.Parameter]):
        self.group = group
        self.parameters = parameters
        self.parts: list[list[int]] = [[] for _ in range(group.size())]

        loads = [0] * group.size()  # elements of each process
        largest_first = sorted(range(len(parameters)), key=lambda number: -parameters[number].numel())
        for number in largest_first:
            process = loads.index(min(loads))
            self.parts[process].append(number)
            loads[process] += parameters[number].numel()
        self.own = sorted(self.parts[group.rank()])

    def broadcast_weights(self) -> None:
        """Send the weights of each parameter from the process that it belongs to, which has updated it, to all."""
        for process, numbers in enumerate(self.parts):
            if numbers:
                weights = [self.parameters[number].data for number in numbers]
                distributed._broadcast_coalesced(self.group, weights, BUCKET, process)

    def gather(self, entries: dict[int, dict]) -> dict[int, dict]:
        """Return the entries of all processes on the first one, with tensors on the CPU; return {} on the others.

        entries: of this process's parameters by their number, each a dict of the parameter's state, all with the same
        keys. A tensor in it has the parameter's shape; anything else is passed on as it is.
        """
        gathered: dict[int, dict] = {}
        for process in range(self.group.size()):
            sent = _packed(entries) if process == self.group.rank() else None
            plain, flats = distributed_utils.broadcast_object(sent, process, self.group)
            if self.group.rank() == 0:
                self._unpack(plain, flats)
                gathered |= plain
        return gathered

    def _unpack(self, plain: dict[int, dict], flats: dict[str, torch.Tensor]) -> None:
        """Put the tensors back into their entries, in place; the arguments are what _packed has returned."""
        shapes = [self.parameters[number].shape for number in plain]
        sizes = [shape.numel() for shape in shapes]
        for name, flat in flats.items():
            for entry, part, shape in zip(plain.values(), flat.split(sizes), shapes, strict=True):
                entry[name] = part.view(shape)


def _packed(entries: dict[int, dict]) -> tuple[dict[int, dict], dict[str, torch.Tensor]]:
    """Return the entries without their tensors, and by key one flat tensor on the CPU that joins those of all entries.

    A broadcast of few large tensors is much faster than one of many small tensors.
    """
    first = next(iter(entries.values()), {})
    names = [name for name, value in first.items() if torch.is_tensor(value)]

    plain = {}
    for number, entry in entries.items():
        plain[number] = {name: value for name, value in entry.items() if name not in names}
    flats = {}
    for name in names:
        flats[name] = torch.cat([entry[name].reshape(-1) for entry in entries.values()]).cpu()
    return plain, flats
