"""Capture the kernels of a function in a CUDA graph, and replay them by one call. No other file of graphs/ calls CUDA.

Graph and Device say what the step of a batch needs. CudaGraph and CudaDevice do it on a GPU; the tests have stand-ins
that work on a CPU.
"""

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
    """Memory of a device in bytes."""

    free: int  # held by no process
    total: int
    reserved: int  # held by torch for tensors, whether tensors use it or not


class Graph(Protocol):
    """The kernels of a function without arguments and result, which reads and writes tensors at fixed addresses.

    A replay runs no Python: plain numbers are those of the capture, tensors are read from the addresses they had then.
    """

    def capture(self, function: Callable[[], None]) -> None:
        """Record the function's kernels; all tensors and the state of random numbers are as before then."""

    def replay(self) -> None:
        """Run the recorded kernels; random numbers come from the generator's present state."""


class Device(Protocol):
    """What the step of a batch asks of a GPU, or of a stand-in for one."""

    def graph(self) -> Graph:
        """Return an empty graph, whose memory is shared with the device's other graphs."""

    def warm_up(self, function: Callable[[], Any]) -> Any:
        """Call the function in a stream of its own and return its result.

        Libraries as cuBLAS make their workspaces at their first call, which must not come during a capture.
        """

    def faster_kernels(self, most_rows: int) -> AbstractContextManager:
        """Return a context that replaces slow kernels of the passes captured in it, or does nothing.

        most_rows: rows (batch times length) of the largest matrix of activations in any graph.
        """

    def seconds(self, function: Callable[[], Any]) -> float:
        """Call the function, wait for the device, and return how long both took."""

    def memory(self) -> Memory:
        """Return the device's memory, after torch has given back what it keeps for later."""


class CudaGraph:
    """A graph on a CUDA device.

    pool: handle of the memory that it shares with other graphs, no two of which may run at the same time.

    A replay draws the random numbers that the function would draw if it were called instead: torch keeps the default
    generator's seed and offset in tensors that a replay fills (ATen/cuda/CUDAGeneratorImpl.cpp, replay_prologue).
    """

    def __init__(self, pool: Any):
        self.pool = pool
        self.graph = torch.cuda.CUDAGraph()

    def capture(self, function: Callable[[], None]) -> None:
        """Record the function; raise CaptureFailed if it cannot be captured.

        A failed capture leaves the allocator and the stream in the state of a capture (CUDAGraph.cpp, reset).
        """
        # torch collects garbage before each capture, which takes 0.4 s because fairseq has so many objects
        gc.freeze()
        try:
            # fairseq's thread that pins the memory of the next batches allocates meanwhile, which thread_local allows
            with torch.cuda.graph(self.graph, pool=self.pool, capture_error_mode="thread_local"):
                function()
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            message = f"--cuda-graphs: a batch cannot be captured ({reason}); give --cuda-graphs 0"
            raise CaptureFailed(message) from error
        finally:
            gc.unfreeze()

    def replay(self) -> None:
        """Launch the graph in the current stream."""
        self.graph.replay()


class CudaDevice:
    """The current CUDA device, with a pool of memory for the graphs of one training.

    faster: replace two kernels by those of kernels.py, which add in another order and so round differently.

    A second training in the same process needs a CudaDevice of its own: torch refuses a pool whose graphs are gone.
    """

    def __init__(self, faster: bool = True) -> None:
        self.faster = faster
        self.pool = torch.cuda.graph_pool_handle()

    def graph(self) -> CudaGraph:
        """Return an empty graph in this training's pool."""
        return CudaGraph(self.pool)

    def warm_up(self, function: Callable[[], Any]) -> Any:
        """Call the function in a new stream, in order with the work of the present stream; return its result."""
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
        """Return the seconds of a call, from an idle device to an idle device."""
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
