"""A graph on a CPU that behaves as a CUDA graph does: it replays operators on fixed memory, and no Python.

Plain numbers are those of the capture, tensors are read where they lay, random numbers are drawn anew.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from deepnet_fairseq.plugin.graphs.capture import Memory

FORBIDDEN = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2"}


class RecordedGraph(TorchDispatchMode):
    """See deepnet_fairseq.plugin.graphs.graph.Graph; RuntimeError for an operator that no stream could capture."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict, list[tuple[int, Tensor]]]] = []

    def capture(self, function: Callable[[], None]) -> None:
        self.made: set[int] = set()  # memory that the function has allocated; kept alive by the calls
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        with torch.random.fork_rng([]), self:
            function()
        for tensor, content in self.before.values():
            tensor.copy_(content)
        del self.made, self.before

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func._overloadpacket._qualified_op_name.split("::")[-1] in FORBIDDEN:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        for argument, given in zip(func._schema.arguments, args, strict=False):
            self._keep(argument, given)
        for argument in func._schema.arguments:
            if argument.name in kwargs:
                self._keep(argument, kwargs[argument.name])
        given = {address(one) for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        result = func(*args, **kwargs)
        results = list(enumerate(tree_leaves(result)))
        new = [(n, one) for n, one in results if isinstance(one, Tensor) and address(one) not in given]
        self.made |= {address(one) for _, one in new}
        self.calls.append((func, args, kwargs, new))
        return result

    def _keep(self, argument: Any, given: Any) -> None:
        """Note the content of memory from outside before the function's first write to it."""
        if argument.alias_info is None or not argument.alias_info.is_write:
            return
        for one in tree_leaves(given):
            if isinstance(one, Tensor) and address(one) not in self.made and address(one) not in self.before:
                whole = torch.empty(0, dtype=one.dtype).set_(one.untyped_storage())
                self.before[address(one)] = whole, whole.clone()

    def replay(self) -> None:
        with torch._C._AutoDispatchBelowAutograd():
            for func, args, kwargs, new in self.calls:
                results = tree_leaves(func(*args, **kwargs))
                for place, tensor in new:
                    if tensor.numel():
                        tensor.copy_(results[place])


def address(tensor: Tensor) -> int:
    """Return where the tensor's memory begins."""
    return tensor.untyped_storage().data_ptr()


class RecordedDevice:
    """Device whose graphs are recorded on a CPU; see deepnet_fairseq.plugin.graphs.capture.Device.

    free: bytes of memory before each question for it, the last one for ever; times: seconds of each call.
    """

    def __init__(self, free: tuple[int, ...] = (2**40,), times: tuple[float, ...] = ()):
        self.free, self.times = list(free), list(times)

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
        return Memory(free=self.free.pop(0) if len(self.free) > 1 else self.free[0], total=2**40, reserved=0)
