"""Capture the kernels of a function in a CUDA graph, and replay them by one call; no other file of graphs/ does so.

The protocols Graph and Device list what GraphedStep (step.py) asks of a GPU. CudaGraph and CudaDevice do it on one; the
tests have stand-ins that work on a CPU.
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
    """Raised when a function cannot be captured in a graph. CUDA is unusable in this process from then on."""


class Memory(NamedTuple):
    """Memory of a device in bytes."""

    free: int  # allocated by no process
    total: int
    reserved: int  # allocated by torch in this process, whether tensors use it at present or not


class Graph(Protocol):
    """The recorded kernels of a function without arguments and result, which reads and writes tensors.

    A replay runs these kernels and no Python: Python numbers have the values that they had at the capture, and tensors
    are read and written at the addresses that they had then.
    """

    def capture(self, function: Callable[[], None]) -> None:
        """Record the function's kernels without running them: tensors and random generators stay as they were."""

    def replay(self) -> None:
        """Run the recorded kernels; random numbers come from the generator's state at the time of the replay."""


class Device(Protocol):
    """A GPU, or a stand-in for one, as GraphedStep (step.py) uses it."""

    def graph(self) -> Graph:
        """Return a graph in which nothing is captured yet; its memory is shared with the device's other graphs."""

    def warm_up(self, function: Callable[[], Any]) -> Any:
        """Call the function in a stream of its own and return its result.

        This comes before the first capture, because libraries such as cuBLAS allocate their workspaces at their first
        call, which must not come during a capture.
        """

    def faster_kernels(self, most_rows: int) -> AbstractContextManager:
        """Return a context that replaces slow operators called in it by faster kernels; a device may replace none.

        most_rows: rows (sentences times length) of the largest matrix of activations in any graph.
        """

    def seconds(self, function: Callable[[], Any]) -> float:
        """Call the function, wait until the device has finished its kernels, and return the seconds of both."""

    def memory(self) -> Memory:
        """Let torch free the memory that no tensor uses, and return the device's memory after that."""


class CudaGraph:
    """A graph on a CUDA device.

    pool: handle (torch.cuda.graph_pool_handle) of the memory that it shares with other graphs, of which therefore only
    one may run at a time.

    A replay draws the random numbers that the function would draw if it were called instead: torch keeps the default
    generator's seed and offset in tensors that a replay fills (ATen/cuda/CUDAGeneratorImpl.cpp, replay_prologue).
    """

    def __init__(self, pool: Any):
        self.pool = pool
        self.graph = torch.cuda.CUDAGraph()

    def capture(self, function: Callable[[], None]) -> None:
        """Record the function; raise CaptureFailed if it cannot be captured.

        CUDA is unusable after a failure, because torch's allocator and the stream stay in the state of a capture
        (CUDAGraph.cpp, reset).
        """
        # older releases of torch call gc.collect() before each capture, newer ones if TORCH_CUDAGRAPH_GC asks for it;
        # it takes 0.4 s with fairseq's many objects, but skips frozen ones
        gc.freeze()
        try:
            # "thread_local": allocations of other threads do not break the capture; fairseq has a thread that pins the
            # memory of the next batches meanwhile
            with torch.cuda.graph(self.graph, pool=self.pool, capture_error_mode="thread_local"):
                function()
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            message = f"--cuda-graphs: a batch cannot be captured ({reason}); give --cuda-graphs 0"
            raise CaptureFailed(message) from error
        finally:
            gc.unfreeze()

    def replay(self) -> None:
        """Launch the captured kernels in the current stream."""
        self.graph.replay()


class CudaDevice:
    """The current CUDA device, with a pool of memory for the graphs of one training.

    faster: whether the graphs use the two faster kernels of kernels.py, which add in another order than torch's and so
    round differently.

    A second training in the same process needs a CudaDevice of its own: torch refuses to capture into a pool whose
    graphs have all been deleted.
    """

    def __init__(self, faster: bool = True) -> None:
        self.faster = faster
        self.pool = torch.cuda.graph_pool_handle()

    def graph(self) -> CudaGraph:
        """Return a graph in which nothing is captured yet; its memory comes from this training's pool."""
        return CudaGraph(self.pool)

    def warm_up(self, function: Callable[[], Any]) -> Any:
        """Call the function in a new stream, after the current stream's work and before what it gets later.

        Returns the function's result. See Device.warm_up.
        """
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = function()
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def faster_kernels(self, most_rows: int) -> AbstractContextManager:
        """Return a context that replaces slow operators in half precision, or one that does nothing.

        most_rows: rows (sentences times length) of the largest matrix of activations in any graph.
        """
        if not self.faster:
            return nullcontext()
        return FasterKernels(most_rows, torch.device("cuda", torch.cuda.current_device()))

    def seconds(self, function: Callable[[], Any]) -> float:
        """Call the function, and return the seconds until the device has finished its kernels."""
        torch.cuda.synchronize()  # earlier kernels do not count
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def memory(self) -> Memory:
        """Let torch free the memory that no tensor uses, and return the device's memory after that."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return Memory(free, total, torch.cuda.memory_reserved())
