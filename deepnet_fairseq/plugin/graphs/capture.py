"""Capture the kernels of a function in a CUDA graph, and replay them by one call. Nothing else here calls CUDA."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch

from ...errors import UserError
from .kernels import FasterKernels


class CaptureFailed(UserError):
    """Failure of a capture, after which CUDA cannot go on in this process."""


class Memory(NamedTuple):
    """Memory of a device in bytes: free, nobody holds it; total; reserved, by torch for tensors, in use or not."""

    free: int
    total: int
    reserved: int


class Graph(Protocol):
    """The kernels of a function without arguments and result, which reads and writes tensors that stay in place.

    A replay runs no Python: plain numbers are those of the capture, tensors are read from the memory they had then.
    """

    def capture(self, function: Callable[[], None]) -> None:
        """Record the function's kernels; tensors and random numbers are left as they were."""

    def replay(self) -> None:
        """Run the kernels; random numbers come from the generator as it is now."""


class Device(Protocol):
    """The device of a training by graphs, or a stand-in that has no GPU."""

    def graph(self) -> Graph:
        """Return an empty graph, whose memory is shared with the device's other graphs."""

    def warm_up(self, function: Callable[[], Any]) -> Any:
        """Call the function in a stream of its own, where libraries make the workspaces that a capture needs."""

    def faster_kernels(self, most_rows: int) -> AbstractContextManager:
        """Return the context in which passes are captured. most_rows: of a matrix of activations."""

    def seconds(self, function: Callable[[], Any]) -> float:
        """Call the function, wait for the device, and return how long both took."""

    def memory(self) -> Memory:
        """Return the device's memory, after torch has given back what it keeps for later."""


class CudaGraph:
    """A graph on a CUDA device.

    pool: handle of the memory that it shares with other graphs, no two of which may run at the same time.

    Random numbers are those that the function would draw itself: torch keeps the default generator's seed and offset
    in tensors that a replay fills (ATen/cuda/CUDAGeneratorImpl.cpp, replay_prologue).
    """

    def __init__(self, pool: Any):
        self.pool = pool
        self.graph = torch.cuda.CUDAGraph()

    def capture(self, function: Callable[[], None]) -> None:
        """Record the function; raise CaptureFailed if it cannot be captured.

        A failed capture leaves the allocator and the stream in the state of a capture (CUDAGraph.cpp, reset).
        """
        gc.freeze()  # torch searches for garbage before each capture, which takes 0.4 s among fairseq's objects
        try:
            # A thread that pins the memory of the next batches allocates meanwhile, which thread_local allows.
            with torch.cuda.graph(self.graph, pool=self.pool, capture_error_mode="thread_local"):
                function()
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            line = f"--cuda-graphs: a batch cannot be captured ({reason}); give --cuda-graphs 0"
            raise CaptureFailed(line) from error
        finally:
            gc.unfreeze()

    def replay(self) -> None:
        """Launch the graph in the current stream."""
        self.graph.replay()


class CudaDevice:
    """The current CUDA device, with a pool of memory for the graphs of one training.

    faster: replace two kernels by those of kernels.py, which round in another order.

    A second training in the same process needs a pool of its own: torch refuses the pool of graphs that are gone.
    """

    def __init__(self, faster: bool = True) -> None:
        self.faster = faster
        self.pool = torch.cuda.graph_pool_handle()

    def graph(self) -> CudaGraph:
        """Return an empty graph in this training's pool."""
        return CudaGraph(self.pool)

    def warm_up(self, function: Callable[[], Any]) -> Any:
        """Call the function in a stream of its own, and return its result."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = function()
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def faster_kernels(self, most_rows: int) -> AbstractContextManager:
        """Return a mode that replaces slow kernels of half precision, or a context that does nothing."""
        if not self.faster:
            return nullcontext()
        return FasterKernels(most_rows, torch.device("cuda", torch.cuda.current_device()))

    def seconds(self, function: Callable[[], Any]) -> float:
        """Return the time of a call, from an idle device to an idle device."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def memory(self) -> Memory:
        """Return the device's memory, after torch has given back what it keeps for later."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return Memory(free, total, torch.cuda.memory_reserved())
