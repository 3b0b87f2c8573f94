"""Gradients at fixed addresses, because a graph adds to the memory it was captured with."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GradientBuffers:
    """Buffers for the gradients of parameters.

    flat: one flat tensor for each type of numbers (torch.dtype); views: for each parameter its part of a flat tensor,
    in the parameter's shape. used: indices of the parameters that the loss depends on, at first all; GraphedStep sets
    them. The gradient of the others stays None, as without graphs: an optimiser applies weight decay where the gradient
    is 0, and leaves a weight whose gradient is None alone.
    """

    def __init__(self, parameters: list[nn.Parameter]):
        self.parameters = parameters
        self.used = list(range(len(parameters)))
        self.flat: list[Tensor] = []
        views: dict[nn.Parameter, Tensor] = {}
        dtypes = dict.fromkeys(parameter.dtype for parameter in parameters)  # each once, in order
        for dtype in dtypes:
            of_dtype = [parameter for parameter in parameters if parameter.dtype == dtype]
            sizes = [parameter.numel() for parameter in of_dtype]
            flat = torch.zeros(sum(sizes), dtype=dtype, device=of_dtype[0].device)
            self.flat.append(flat)
            for parameter, part in zip(of_dtype, flat.split(sizes), strict=True):
                views[parameter] = part.view(parameter.shape)
        self.views = [views[parameter] for parameter in parameters]

    def zero(self) -> None:
        """Set all gradients to 0, with one kernel for each type."""
        for flat in self.flat:
            flat.zero_()

    def attach(self) -> None:
        """Set the buffers as the parameters' gradients (`grad`), and keep the gradients that were summed so far.

        Before the first batch of an update all gradients are None, because fairseq's optimisers drop them; the buffers
        then begin at 0. Within an update a batch that was computed without a graph may have left gradients outside of
        the buffers; these are copied.
        """
        detached = [index for index in self.used if self.parameters[index].grad is not self.views[index]]
        if not detached:
            return
        if len(detached) == len(self.used):
            self.zero()  # one kernel
        else:
            torch._foreach_zero_([self.views[index] for index in detached])
        for index in detached:
            parameter = self.parameters[index]
            if parameter.grad is not None:
                self.views[index].add_(parameter.grad)
            parameter.grad = self.views[index]

    def add(self, gradients: tuple[Tensor | None, ...]) -> None:
        """Add the gradients of a batch to the buffers; one for each parameter, in order. None adds nothing.

        torch._foreach_add_ launches one kernel for about a hundred tensors, but one for each tensor of a list in which
        any is transposed. Transposed gradients are therefore added one by one.
        """
        # by type of numbers: buffers, and the gradients to add to them
        lists: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for view, gradient in zip(self.views, gradients, strict=True):
            if gradient is None:
                continue
            is_transposed = view.stride() != gradient.stride()
            if is_transposed:
                view.add_(gradient)
                continue
            views, batch_gradients = lists.setdefault(view.dtype, ([], []))
            views.append(view)
            batch_gradients.append(gradient)
        for views, batch_gradients in lists.values():
            torch._foreach_add_(views, batch_gradients)
