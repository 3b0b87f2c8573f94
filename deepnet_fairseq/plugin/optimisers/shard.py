"""ZeRO stage 1 (Rajbhandari et al. 2020): each process keeps the optimiser's state of its share of the parameters.

A process updates the parameters of its share, and then sends them to the others.
"""

from __future__ import annotations

import torch
from fairseq.distributed import utils as distributed_utils
from torch import distributed, nn

BUCKET = 2**28  # bytes of weights that torch joins and sends at a time


class Shard:
    """The division of a model's parameters among the processes of a group.

    group: torch's group of the processes that train together;
    parameters: all of the model's, in the same order on each process; a parameter's number is its index in this list;
    parts: for each process of the group the numbers of its parameters;
    own_numbers: the numbers of this process's parameters, in ascending order.

    Each parameter belongs to one process. The largest are dealt out first, each to the process with the fewest elements
    so far.

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
        self.own_numbers = sorted(self.parts[group.rank()])

    def broadcast_weights(self) -> None:
        """Send each parameter's weights from the process that it belongs to, which has updated them, to all others."""
        for process, numbers in enumerate(self.parts):
            if numbers:
                weights = [self.parameters[number].data for number in numbers]
                distributed._broadcast_coalesced(self.group, weights, BUCKET, process)

    def gather(self, entries: dict[int, dict]) -> dict[int, dict]:
        """Gather the optimiser's states of all processes on the first one; all processes must call it.

        entries: {number of one of this process's parameters: the parameter's state}. A state is a dict, of the same
        keys for all parameters; its tensors have the parameter's shape, and other values are passed on as they are.
        Returns such a dict: on the first process of all parameters, with tensors on the CPU; on the others {}.
        """
        gathered: dict[int, dict] = {}
        for process in range(self.group.size()):
            sent = _packed(entries) if process == self.group.rank() else None  # only one process sends at a time
            plain, flats = distributed_utils.broadcast_object(sent, process, self.group)
            if self.group.rank() == 0:
                self._unpack(plain, flats)
                gathered |= plain
        return gathered

    def _unpack(self, plain: dict[int, dict], flats: dict[str, torch.Tensor]) -> None:
        """Put the tensors into the entries that _packed has taken them from: split `flats`, and fill `plain` in place.

        plain, flats: what _packed has returned.
        """
        shapes = [self.parameters[number].shape for number in plain]
        sizes = [shape.numel() for shape in shapes]
        for name, flat in flats.items():
            for entry, part, shape in zip(plain.values(), flat.split(sizes), shapes, strict=True):
                entry[name] = part.view(shape)


def _packed(entries: dict[int, dict]) -> tuple[dict[int, dict], dict[str, torch.Tensor]]:
    """Separate the tensors of entries from their other values, because few large tensors are broadcast much faster.

    entries: see Shard.gather. Returns the entries without their tensors; and for each key of a tensor one flat tensor
    on the CPU, which joins the tensors of all entries in the order of the entries.
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
