"""Gradients that stay in place, because a graph adds to the memory it was captured with."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GradientBuffers:
    """Buffers for the gradients of parameters: one flat tensor for each type of numbers, and a view of it for each.

    used: places of the parameters that the loss depends on. The gradient of the others stays None, as without graphs:
    an optimiser decays a weight whose gradient is 0, and leaves one without gradient alone.
    """

    def __init__(self, parameters: list[nn.Parameter]):
        self.parameters = parameters
        self.used = list(range(len(parameters)))
        self.flat: list[Tensor] = []
        views: dict[nn.Parameter, Tensor] = {}
        for kind in dict.fromkeys(parameter.dtype for parameter in parameters):
            of_kind = [parameter for parameter in parameters if parameter.dtype == kind]
            sizes = [parameter.numel() for parameter in of_kind]
            flat = torch.zeros(sum(sizes), dtype=kind, device=of_kind[0].device)
            self.flat.append(flat)
            for parameter, part in zip(of_kind, flat.split(sizes), strict=True):
                views[parameter] = part.view(parameter.shape)
        self.views = [views[parameter] for parameter in parameters]

    def zero(self) -> None:
        """Set all gradients to 0, with one kernel for each type."""
        for flat in self.flat:
            flat.zero_()

    def attach(self) -> None:
        """Make the buffers the parameters' gradients, with the sums that are there already.

        Where all gradients are None, as fairseq's optimisers leave them, the buffers begin at 0. A batch that was
        computed without a graph has left gradients of its own, which are copied.
        """
        detached = [place for place in self.used if self.parameters[place].grad is not self.views[place]]
        if not detached:
            return
        if len(detached) == len(self.used):
            self.zero()
        else:
            torch._foreach_zero_([self.views[place] for place in detached])
        for place in detached:
            parameter = self.parameters[place]
            if parameter.grad is not None:
                self.views[place].add_(parameter.grad)
            parameter.grad = self.views[place]

    def add(self, gradients: tuple[Tensor | None, ...]) -> None:
        """Add the gradients of a batch, in the parameters' order; None adds nothing.

        Lists of tensors take one kernel for about a hundred of them. A list in which one tensor is transposed takes a
        kernel for each, and such gradients are added apart.
        """
        lists: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for view, gradient in zip(self.views, gradients, strict=True):
            if gradient is None:
                continue
            if view.stride() != gradient.stride():
                view.add_(gradient)
                continue
            views, of_batch = lists.setdefault(view.dtype, ([], []))
            views.append(view)
            of_batch.append(gradient)
        for views, of_batch in lists.values():
            torch._foreach_add_(views, of_batch)
