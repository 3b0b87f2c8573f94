"""Capture on a CUDA device.

Not torch.cuda.make_graphed_callables, from which the order of steps is taken: its gradients are buffers that the next
backward pass overwrites under a parameter's `grad` (update-freq 2 then counts the last batch twice), it keeps such
buffers for each shape, it stops where a thread that pins batches allocates meanwhile, and it refuses autocast.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager

import torch
from torch import Tensor

from .replay import Gradients

WARM_UP = 3  # passes in which libraries choose their kernels and allocate their workspaces, as torch does


class CudaCapture:
    """Two CUDA graphs, forward and backward; see replay.Capture.

    function: of tensors (None where an input is), run here as it will be replayed; inputs: those that are tensors, by
    whose shapes, types and strides the graph is made; pool: one of `new_pool` that only graphs share whose passes
    never overlap. Random numbers are drawn anew, from the device's generator, at each replay, the same
    that the function would draw. RuntimeError from torch if something in the function cannot be captured.
    """

    device = "cuda"
    new_pool = staticmethod(torch.cuda.graph_pool_handle)

    def __init__(self, function: Callable, inputs: list[Tensor], gradients: Gradients, pool):
        self.inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
        self._wanted = [t for t in self.inputs if t.requires_grad]
        with _unchanged_random_state(inputs[0].device):
            self._warm_up(function, gradients)
            self._capture(function, gradients, pool)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        for static, given in zip(self.inputs, inputs, strict=True):
            static.detach().copy_(given)
        self._forward.replay()
        return self.output.clone()

    def backward(self, gradient: Tensor) -> list[Tensor | None]:
        self.gradient.copy_(gradient)
        self._backward.replay()
        return [None if found is None else found.clone() for found in self.of_inputs]

    def _differentiate(self, output: Tensor, gradient: Tensor, gradients: Gradients) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs that have one, then those of the parameters."""
        wanted = self._wanted + gradients.parameters
        with torch.autocast("cuda", enabled=False):
            return torch.autograd.grad(output, wanted, gradient, allow_unused=True)

    def _warm_up(self, function: Callable, gradients: Gradients) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                output = _uncached(function, self.inputs)
                self._differentiate(output, torch.zeros_like(output), gradients)
        torch.cuda.current_stream().wait_stream(stream)

    def _capture(self, function: Callable, gradients: Gradients, pool) -> None:
        # thread_local: a thread that pins the next batch allocates meanwhile, and may
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._forward, pool=pool, capture_error_mode="thread_local"):
            output = _uncached(function, self.inputs)
        self.gradient = torch.empty_like(output, requires_grad=False)
        with torch.cuda.graph(self._backward, pool=pool, capture_error_mode="thread_local"):
            found = self._differentiate(output, self.gradient, gradients)
            of_inputs, of_parameters = found[: len(self._wanted)], found[len(self._wanted) :]
            pairs = [(b, g) for b, g in zip(gradients.buffers, of_parameters, strict=True) if g is not None]
            if pairs:
                torch._foreach_copy_(*map(list, zip(*pairs, strict=True)))
        self.used = [gradient is not None for gradient in of_parameters]
        own = iter(of_inputs)
        self.of_inputs = [next(own) if static.requires_grad else None for static in self.inputs]
        self.output = output.detach()


def _uncached(function: Callable, inputs: list[Tensor]) -> Tensor:
    """Autocast's cache would keep weights as they were at the capture."""
    device = inputs[0].device.type
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    with torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False):
        return function(*inputs)


@contextmanager
def _unchanged_random_state(device: torch.device):
    state = torch.cuda.get_rng_state(device)
    try:
        yield
    finally:
        torch.cuda.set_rng_state(state, device)
