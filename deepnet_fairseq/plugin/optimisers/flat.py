"""Parameters of one type on one device as views of one buffer: what is done to all of them is one operation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, distributed, nn

HALF = (torch.float16, torch.bfloat16)
ALIGN = 32  # elements: a parameter begins at a multiple of 64 bytes in half precision too, as fast kernels ask for
# elements of gradient that are copied into one piece at a time: as many as stay in a core's cache, or 1 GiB
CHUNK = {"cpu": 2**18, "cuda": 2**28}
GATHERED = 2**24  # elements that are gathered at a time, in each process's shard
_all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor  # before torch 2.13


class Shard:
    """This process's shard of vectors whose length is a multiple of the group's size."""

    def __init__(self, group):
        self.group, self.rank, self.world = group, group.rank(), group.size()

    def span(self, length: int) -> tuple[int, int]:
        """Where the shard of a vector begins and ends."""
        each = length // self.world
        return self.rank * each, (self.rank + 1) * each

    def spread(self, whole: Tensor) -> None:
        """All shards of `whole` (length,), of which each process has computed its own, everywhere."""
        start, stop = self.span(len(whole))
        _all_gather(whole, whole[start:stop].clone(), group=self.group)

    def collected(self, mine: Tensor) -> Tensor | None:
        """The whole of which `mine` is the shard, on the first process's CPU, None elsewhere; a call of all."""
        whole = torch.empty(self.world, len(mine), dtype=mine.dtype) if self.rank == 0 else None
        for start in range(0, len(mine), GATHERED):
            chunk = mine[start : start + GATHERED]
            found = chunk.new_empty(self.world * len(chunk))
            _all_gather(found, chunk, group=self.group)
            if whole is not None:
                whole[:, start : start + GATHERED] = found.view(self.world, -1).cpu()
        return None if whole is None else whole.view(-1)


class Chunk(NamedTuple):
    """A stretch of the buffer: several parameters, or a part of a large one.

    numbers: of the parameters; start, stop: of the stretch; skip: elements of a large parameter in front of it;
    gradient (stop - start,), and its views: of each parameter's gradient, and of the padding in between.
    """

    numbers: slice
    start: int
    stop: int
    skip: int
    gradient: Tensor
    views: list[Tensor]
    padding: list[Tensor]


class Flat:
    """The memory of some parameters, whose `data` become views of one buffer.

    parameters: of one dtype and device, in the order in which they are to lie. weights (total,): what an optimiser
    updates, which is that buffer, or a copy of it in float32 if it is in half precision; with a shard those of the
    shard alone, from `start` on in the buffer.
    Padding, at first 0, lies between parameters.
    Gradients stay where autograd puts them and are copied together chunk by chunk, the same small memory for all.
    """

    def __init__(self, parameters: list[nn.Parameter]):
        self.parameters = parameters
        self._spans = list(_spans(parameters))
        self._buffer = parameters[0].data.new_zeros(self._spans[-1][1])
        for parameter, view in zip(parameters, self.views(self._buffer), strict=True):
            view.copy_(parameter.data)
            parameter.data = view
        self.weights = self._buffer.float() if self._buffer.dtype in HALF else self._buffer
        self.start, self._shard = 0, None
        self._chunks = self._cut(CHUNK.get(self.weights.device.type, CHUNK["cuda"]))
        self._grads: list[Tensor | None] = []
        self._held: Chunk | None = None  # the one whose gradient is there, for they share its memory

    def shard(self, shard: Shard) -> None:
        """From now on `weights` are those of the shard, and publishing gives them to all and takes theirs."""
        buffer = nn.functional.pad(self._buffer, (0, -len(self._buffer) % shard.world))
        for parameter, view in zip(self.parameters, self.views(buffer), strict=True):
            parameter.data = view
        self.start, stop = shard.span(len(buffer))
        self._buffer, self._shard = buffer, shard
        own = buffer[self.start : stop]
        self.weights = own.float() if own.dtype in HALF else own

    def views(self, flat: Tensor) -> list[Tensor]:
        """The parts of `flat` (total,) that belong to each parameter, in its shape."""
        spans = zip(self._spans, self.parameters, strict=True)
        return [flat[start:stop].view(parameter.shape) for (start, stop), parameter in spans]

    def fill(self, mine: Tensor, values: dict[int, Tensor]) -> None:
        """Writes what belongs to parameters, by their number, to `mine`, which is as long as `weights`."""
        flat = mine if self._shard is None else torch.zeros(len(self._buffer), dtype=mine.dtype)
        views = self.views(flat)
        torch._foreach_copy_([views[number] for number in values], [value.to(flat.device) for value in values.values()])
        if flat is not mine:
            mine.copy_(flat[self.start :][: len(mine)])

    def stretch(self, first: int, last: int) -> tuple[int, int]:
        """Where the parameters number `first` to `last` begin and end."""
        return self._spans[first][0], self._spans[last][1]

    def collect(self) -> None:
        """Notes the gradients that the parameters have now; RuntimeError if the parameters left the buffer."""
        if self.parameters[0].data_ptr() != self._buffer.data_ptr():
            raise RuntimeError("the parameters were moved or cast behind the optimiser's back: build it anew")
        self._grads, self._held = [parameter.grad for parameter in self.parameters], None

    def drop(self) -> None:
        """Lets go of the noted gradients."""
        self._grads = []

    @property
    def present(self) -> list[bool]:
        """Which parameters have a gradient."""
        return [grad is not None for grad in self._grads]

    def gradients(self, own: bool = False) -> Iterator[tuple[int, int, Tensor]]:
        """Begin and end of a stretch of the buffer and its gradient, in the type of `weights`, 0 where there is none.

        own: of what touches `weights` alone, the last stretch first, which is still there when all have been asked for.
        A gradient is overwritten when the next is asked for.
        """
        for chunk in reversed(self._chunks) if own else self._chunks:
            if own and (chunk.stop <= self.start or chunk.start >= self.start + len(self.weights)):
                continue
            if self._held is not chunk:
                self._copy(chunk)
                self._held = chunk
            yield chunk.start, chunk.stop, chunk.gradient

    def publish(self) -> None:
        """The model's parameters become what `weights` says, rounded to their type, and what those of others say."""
        if self._buffer.dtype in HALF:
            self._buffer[self.start : self.start + len(self.weights)] = self.weights
        if self._shard is not None:
            self._shard.spread(self._buffer)

    def _copy(self, chunk: Chunk) -> None:
        grads: list[Tensor] = []
        views, absent = [], list(chunk.padding)
        for number, view in enumerate(chunk.views, chunk.numbers.start):
            grad = self._grads[number]
            if grad is None:
                absent.append(view)
                continue
            grads.append(grad)
            views.append(view)
        if len(chunk.views) == 1:  # maybe a part of it
            grads = [grad.reshape(-1)[chunk.skip :][: chunk.stop - chunk.start] for grad in grads]
        if grads:
            torch._foreach_copy_(views, grads)
        if absent:
            torch._foreach_zero_(absent)

    def _cut(self, limit: int) -> list[Chunk]:
        memory = self.weights.new_empty(min(limit, len(self.weights)))
        chunks = []
        for first, last in _runs(self._spans, limit):
            start, stop = self.stretch(first, last)
            numbers = slice(first, last + 1)
            if first == last:
                for begin in range(start, stop, limit):
                    gradient = memory[: min(limit, stop - begin)]
                    chunks.append(Chunk(numbers, begin, begin + len(gradient), begin - start, gradient, [gradient], []))
                continue
            gradient, spans = memory[: stop - start], self._spans[numbers]
            shaped = zip(spans, self.parameters[numbers], strict=True)
            views = [gradient[a - start : b - start].view(parameter.shape) for (a, b), parameter in shaped]
            padding = [gradient[b - start : c - start] for (_, b), (c, _) in zip(spans, spans[1:]) if b < c]
            chunks.append(Chunk(numbers, start, stop, 0, gradient, views, padding))
        return chunks


def _spans(parameters: list[nn.Parameter]) -> Iterator[tuple[int, int]]:
    """Where each parameter begins and ends in the buffer."""
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        yield start, stop
        start = -(-stop // ALIGN) * ALIGN


def _runs(spans: list[tuple[int, int]], limit: int) -> Iterator[tuple[int, int]]:
    """First and last of neighbours that take at most `limit` elements together; one that takes more by itself."""
    first = 0
    for last in range(len(spans)):
        if last + 1 == len(spans) or spans[last + 1][1] - spans[first][0] > limit:
            yield first, last
            first = last + 1
