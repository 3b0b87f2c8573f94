"""A captured graph as one step of autograd: its inputs and parameters go in, their gradients come out."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Capture(Protocol):
    """Forward and backward pass for one shape of inputs; see cuda.CudaCapture."""

    device: str  # type of device on which it works
    used: list[bool]  # which of the parameters have a gradient

    @staticmethod
    def new_pool():
        """Memory for the captures of one stack."""

    def __init__(self, function: Callable, inputs: list[Tensor], gradients: Gradients, pool): ...

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """The output, in memory of its own; what the backward pass needs stays inside until the next call."""

    def backward(self, gradient: Tensor) -> list[Tensor | None]:
        """Gradients of the inputs, in memory of their own; those of the parameters are then in `Gradients.buffers`."""


class Gradients:
    """Where the graphs of one stack, of whatever shape, leave the gradients of its parameters.

    Autograd makes the first gradient that reaches a parameter its `grad`, without a copy: grad is then this buffer,
    which costs nothing while each update has one backward pass, and must be moved out before the next.
    """

    def __init__(self, parameters: list[nn.Parameter]):
        self.parameters = parameters
        self.buffers = [torch.empty_like(parameter, requires_grad=False) for parameter in parameters]

    def move_out(self) -> None:
        """Gradients that lie in the buffers get memory of their own, in a few kernels for all of them."""
        pairs = zip(self.parameters, self.buffers, strict=True)
        here = [p for p, buffer in pairs if p.grad is not None and p.grad.data_ptr() == buffer.data_ptr()]
        if here:
            own = [torch.empty_like(p.grad) for p in here]
            torch._foreach_copy_(own, [p.grad for p in here])
            for parameter, gradient in zip(here, own, strict=True):
                parameter.grad = gradient


class Lease:
    """The forward pass whose backward pass is still to come: until then no other may use the graphs' memory."""

    def __init__(self):
        self._holder = lambda: None

    @property
    def free(self) -> bool:
        """True also once the outputs of the last pass are gone without a backward pass."""
        holder = self._holder()
        return holder is None or holder.done

    def give(self, ctx) -> None:
        """To the forward pass whose context of autograd this is; its backward pass sets ctx.done."""
        ctx.done = False
        self._holder = weakref.ref(ctx)


class Replay(torch.autograd.Function):
    """Replay.apply(capture, gradients, lease, number of inputs, *inputs, *parameters) -> output."""

    @staticmethod
    def forward(ctx, capture: Capture, gradients: Gradients, lease: Lease, inputs: int, *tensors: Tensor) -> Tensor:
        ctx.capture, ctx.gradients = capture, gradients
        lease.give(ctx)
        return capture.forward(list(tensors[:inputs]))

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        if ctx.done:
            raise RuntimeError("--cuda-graphs: a second backward pass through the same forward pass; drop the flag")
        ctx.done = True
        ctx.gradients.move_out()
        of_inputs = ctx.capture.backward(gradient)
        of_parameters = [
            buffer.detach() if used else None
            for buffer, used in zip(ctx.gradients.buffers, ctx.capture.used, strict=True)
        ]
        return None, None, None, None, *of_inputs, *of_parameters
