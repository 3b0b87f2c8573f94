"""Stands in for a stack's `transform`: a captured graph where one fits, the layers themselves where none does."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .cuda import CudaCapture
from .given import Given, inner_modules
from .replay import Capture, Gradients, Lease, Replay

logger = logging.getLogger(__name__)
DROPS = 3  # so often the graphs may go stale before they are given up


class Graphed:
    """Called as transform(x, *inputs); `stack.transform = Graphed(stack, ...)`.

    A shape is captured when it comes for the second time, for an epoch's odd batches come once. Once `limit` shapes
    are captured the others run as they are: batches come shuffled, so a graph given up for another would be wanted
    again soon, and a capture costs more than several passes. All graphs of a stack share one pool of memory and one
    set of gradients, whatever their number.
    """

    def __init__(self, stack: nn.Module, limit: int, capture: type[Capture] = CudaCapture):
        self.eager, self.limit, self.capture = stack.transform, limit, capture
        self.stack, self.name = stack, type(stack).__name__.lower()
        self.given = Given(list(inner_modules(stack)))
        self.held: tuple | None = None  # what the graphs at hand take as given
        self.drops, self.said = 0, set()
        self.gradients: Gradients | None = None
        self._clear()

    def __call__(self, x: Tensor, *inputs: Tensor | None) -> Tensor:
        """x (B, T, C) and what each layer is given besides -> (B, T, C), as Stack.transform."""
        if not (self.stack.training and torch.is_grad_enabled()):
            return self.eager(x, *inputs)
        capture = None if self._obstacle(x) else self._fitting((x, *inputs))
        if capture is None:
            return self.eager(x, *inputs)
        tensors = [t for t in (x, *inputs) if t is not None]
        return Replay.apply(capture, self.gradients, self.lease, len(tensors), *tensors, *self.gradients.parameters)

    def __deepcopy__(self, memo) -> Callable:
        """A copied stack runs its own layers: graphs are bound to the memory of these."""
        return copy.deepcopy(self.eager, memo)

    def _obstacle(self, x: Tensor) -> bool:
        """Is there a reason to run the layers themselves this time? Each is told once."""
        if self.drops >= DROPS:
            return True
        if x.device.type != self.capture.device:
            return self._say(f"a batch that is not on a {self.capture.device} device runs without")
        if self.given.watched():
            return self._say("updates in which hooks watch the layers run without")
        if not self.lease.free:
            return self._say("a forward pass that comes before the backward pass of the one before runs without")
        return False

    def _fitting(self, inputs: tuple[Tensor | None, ...]) -> Capture | None:
        """The graph for these inputs, captured now if it is time to."""
        given = self.given.now()
        if given != self.held and not self._settle(given):
            return None
        key = (tuple(map(_form, inputs)), torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"))
        if key in self.captures:
            return self.captures[key]
        self.seen[key] += 1
        if self.seen[key] == 1:
            return None
        if len(self.captures) >= self.limit:
            self._say(
                f"the limit of {self.limit} shapes is reached, further ones run without; make them fewer by "
                "--num-batch-buckets, or raise --cuda-graphs-limit"
            )
            return None
        self.captures[key] = self._captured(inputs)
        return self.captures[key]

    def _settle(self, given: tuple) -> bool:
        """Starts anew where the model is no longer what the graphs were captured of; False once that is in vain."""
        if self.captures:
            self.drops += 1
            self._clear()
        self.held = given
        if self.drops >= DROPS:
            self._say("parameters move, or numbers in the layers change, again and again: no graphs from here on")
        return self.drops < DROPS

    def _captured(self, inputs: tuple[Tensor | None, ...]) -> Capture | None:
        places = [i for i, t in enumerate(inputs) if t is not None]

        def function(*tensors: Tensor) -> Tensor:
            whole: list[Tensor | None] = [None] * len(inputs)
            for place, tensor in zip(places, tensors, strict=True):
                whole[place] = tensor
            return self.eager(*whole)

        if self.gradients is None:
            self.gradients = Gradients(self.given.parameters())
            self.pool = self.capture.new_pool()
        try:
            return self.capture(function, [inputs[i] for i in places], self.gradients, self.pool)
        except RuntimeError as error:
            self._say(f"what cannot be captured runs without ({str(error).splitlines()[0]})")
            return None

    def _clear(self) -> None:
        self.captures: dict[tuple, Capture | None] = {}
        self.seen: Counter = Counter()
        self.lease, self.gradients, self.pool = Lease(), None, None

    def _say(self, why: str) -> bool:
        if why not in self.said:
            self.said.add(why)
            logger.info(f"--cuda-graphs, {self.name}: {why}")
        return True


def _form(tensor: Tensor | None) -> tuple | None:
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad)
