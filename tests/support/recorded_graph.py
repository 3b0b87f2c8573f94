"""A graph on a CPU that behaves as a CUDA graph does: it replays operators on fixed memory, and no Python.

Numbers of Python have the values that they had at the capture. Tensors are read and written where they lay then. Random
numbers are drawn anew in each replay.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from deepnet_fairseq.plugin.graphs.capture import CaptureFailed, Memory

# Operators whose result goes to the CPU, or has a size that depends on numbers: a stream cannot capture them.
FORBIDDEN = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2"}


class RecordedCall(NamedTuple):
    """A call of an operator of ATen, as it was at the capture."""

    operator: Any
    args: tuple
    kwargs: dict
    allocated: dict[int, Tensor]  # place among the results -> result, of those in memory that the call has allocated


class RecordedGraph(TorchDispatchMode):
    """Graph of a function, see deepnet_fairseq.plugin.graphs.capture.Graph.

    The capture runs the function, records its calls, and takes back what it has written. It raises a RuntimeError for
    one of the operators in FORBIDDEN, and for a read of the random generator's state, as CUDA does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[RecordedCall] = []
        # during a capture only; memory goes by `address`
        self.own: set[int] = set()  # memory that the function has allocated; the recorded calls keep it alive
        self.overwritten: dict[int, tuple[Tensor, Tensor]] = {}  # other memory that it writes to, and its old content

    def capture(self, function: Callable[[], None]) -> None:
        with torch.random.fork_rng([]), patch.object(torch, "get_rng_state", _state_must_not_be_read), self:
            function()
        for memory, content in self.overwritten.values():
            memory.copy_(content)
        self.own = set()
        self.overwritten = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Run and record a call of an operator, `func`, of the function that is captured."""
        kwargs = kwargs or {}
        if func._overloadpacket._qualified_op_name.split("::")[-1] in FORBIDDEN:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        self._save_what_is_overwritten(func, args, kwargs)
        memory_of_arguments = {address(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}

        result = func(*args, **kwargs)

        allocated = {}  # other results are the arguments themselves, or views of them
        for place, leaf in enumerate(tree_leaves(result)):
            if isinstance(leaf, Tensor) and address(leaf) not in memory_of_arguments:
                allocated[place] = leaf
                self.own.add(address(leaf))
        self.calls.append(RecordedCall(func, args, kwargs, allocated))
        return result

    def _save_what_is_overwritten(self, func: Any, args: tuple, kwargs: dict) -> None:
        """Copy the memory from outside that this call of `func` is the first to write to."""
        given = list(zip(func._schema.arguments, args, strict=False))
        for argument in func._schema.arguments:
            if argument.name in kwargs:
                given.append((argument, kwargs[argument.name]))

        for argument, value in given:
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for leaf in tree_leaves(value):
                if not isinstance(leaf, Tensor) or address(leaf) in self.own or address(leaf) in self.overwritten:
                    continue
                memory = torch.empty(0, dtype=leaf.dtype).set_(leaf.untyped_storage())  # all of it, not only a view
                self.overwritten[address(leaf)] = (memory, memory.clone())

    def replay(self) -> None:
        """Repeat the calls, and put what they allocate this time into the memory of the capture."""
        with torch._C._AutoDispatchBelowAutograd():
            for call in self.calls:
                results = tree_leaves(call.operator(*call.args, **call.kwargs))
                for place, tensor in call.allocated.items():
                    if tensor.numel():
                        tensor.copy_(results[place])


def _state_must_not_be_read() -> Tensor:
    """Stand in for torch.get_rng_state during a capture."""
    raise RuntimeError("the state of a generator cannot be read when stream is capturing")


def address(tensor: Tensor) -> int:
    """Return where the memory that a tensor lies in begins; views of one tensor have the same."""
    return tensor.untyped_storage().data_ptr()


class RecordedDevice:
    """Device whose graphs are recorded on a CPU; see deepnet_fairseq.plugin.graphs.capture.Device.

    free: bytes of free memory that it reports, one after the other, and the last one from then on; times: seconds that
    it reports of each measured call, whatever they were.
    """

    def __init__(self, free: tuple[int, ...] = (2**40,), times: tuple[float, ...] = ()):
        self.free = list(free)
        self.times = list(times)

    def graph(self) -> RecordedGraph:
        return RecordedGraph()

    def warm_up(self, function: Callable[[], Any]) -> Any:
        return function()

    def faster_kernels(self, most_rows: int) -> AbstractContextManager:
        return nullcontext()

    def seconds(self, function: Callable[[], Any]) -> float:
        function()
        return self.times.pop(0)

    def memory(self) -> Memory:
        is_last = len(self.free) == 1
        free = self.free[0] if is_last else self.free.pop(0)
        return Memory(free=free, total=2**40, reserved=0)


class UncapturableGraph:
    """Graph whose capture fails."""

    def capture(self, function: Callable[[], None]) -> None:
        raise CaptureFailed("--cuda-graphs: cannot be captured")


class UncapturableDevice(RecordedDevice):
    """Device on which nothing can be captured."""

    def graph(self) -> Any:
        return UncapturableGraph()
