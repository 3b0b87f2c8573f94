"""Gradients at fixed addresses: a graph adds the gradients of a batch to the memory that it was captured with."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GradientBuffers:
    """Buffers for the gradients of parameters.

    parameters: all trained ones, each once;
    flat: one flat tensor (N,) for each torch.dtype, with the gradients of all parameters of that dtype;
    views: for each of `parameters` its part of a flat tensor, in the parameter's shape;
    used: indices in `parameters` of those that the loss depends on; at first all, until GraphedStep sets it.

    The gradient of a parameter that is not used stays None, as without graphs: an optimiser applies weight decay to a
    weight whose gradient is 0, and leaves one whose gradient is None as it is.
    """

    def __init__(self, parameters: list[nn.Parameter]):
        self.parameters = parameters
        self.used = list(range(len(parameters)))
        self.flat: list[Tensor] = []
        view_of: dict[nn.Parameter, Tensor] = {}
        dtypes = dict.fromkeys(parameter.dtype for parameter in parameters)  # each once, in order
        for dtype in dtypes:
            of_dtype = [parameter for parameter in parameters if parameter.dtype == dtype]
            sizes = [parameter.numel() for parameter in of_dtype]
            flat = torch.zeros(sum(sizes), dtype=dtype, device=of_dtype[0].device)
            self.flat.append(flat)
            for parameter, part in zip(of_dtype, flat.split(sizes), strict=True):
                view_of[parameter] = part.view(parameter.shape)
        self.views = [view_of[parameter] for parameter in parameters]

    def zero(self) -> None:
        """Set all gradients to 0, with one kernel for each dtype."""
        for flat in self.flat:
            flat.zero_()

    def attach(self) -> None:
        """Make the buffers the gradients (`grad`) of the used parameters; each keeps the value that `grad` has, or 0.

        Before the first batch of an update every `grad` is None, because fairseq's optimisers drop the gradients of the
        update before. Within an update a batch that was computed without a graph may have left a `grad` that is another
        tensor than the buffer; it is copied.
        """
        elsewhere = [index for index in self.used if self.parameters[index].grad is not self.views[index]]
        if not elsewhere:  # a graph has computed the batch before
            return
        if len(elsewhere) == len(self.used):
            self.zero()  # faster: one kernel for each dtype
        else:
            torch._foreach_zero_([self.views[index] for index in elsewhere])
        for index in elsewhere:
            parameter = self.parameters[index]
            if parameter.grad is not None:
                self.views[index].add_(parameter.grad)
            parameter.grad = self.views[index]

    def add(self, gradients: tuple[Tensor | None, ...]) -> None:
        """Add the gradients of a batch to the buffers.

        gradients: one for each of self.parameters, in order; None for a parameter that the loss does not depend on,
        which adds nothing.

        torch._foreach_add_ launches one kernel for about a hundred tensors; but if any gradient in its list is
        transposed, one kernel for each tensor. Transposed gradients are therefore added one by one.
        """
        # dtype -> buffers, and the gradients to add to them
        by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for view, gradient in zip(self.views, gradients, strict=True):
            if gradient is None:
                continue
            is_transposed = view.stride() != gradient.stride()
            if is_transposed:
                view.add_(gradient)
                continue
            views, batch_gradients = by_dtype.setdefault(view.dtype, ([], []))
            views.append(view)
            batch_gradients.append(gradient)
        for views, batch_gradients in by_dtype.values():
            torch._foreach_add_(views, batch_gradients)
