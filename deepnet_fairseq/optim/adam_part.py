"""Adam with decoupled weight decay on flat parameters: a handful of kernels, however many tensors a model has.

Kingma and Ba 2015, algorithm 1 in the order of section 2's end, and Loshchilov and Hutter 2019, algorithm 2. These are
the numbers of fairseq's adam, p -= lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps), which takes some ten kernels a
tensor. torch's fused kernel divides by sqrt(v / (1 - b2^t)) + eps, which is the same with eps / sqrt(1 - b2^t) in the
place of eps.
"""

from __future__ import annotations

import math
from itertools import groupby

import torch
from torch import Tensor, nn

from .adam_state import MOMENTS
from .flat import Flat

ROW = 512  # elements: squares are added up row by row; float32 sums of 4e7 of them in a row are off by 3e-3


class Part:
    """Flat parameters, their places in the optimiser's list, and their state of Adam.

    steps: updates each parameter has had; one without gradient is left out of an update, as fairseq's adam does.
    moments: empty until they are needed; of the share, if it is shared.
    """

    def __init__(self, places: list[int], parameters: list[nn.Parameter]):
        self.places, self.flat = places, Flat(parameters)
        self.steps = [0] * len(places)
        self.moments: dict[str, Tensor] = {}

    def norm(self) -> Tensor:
        """L2 norm of the gradients, a number in float32."""
        self.flat.collect()
        return torch.linalg.vector_norm(torch.stack([_norm(gradient) for *_, gradient in self.flat.gradients()]))

    def filled_moments(self) -> dict[str, Tensor]:
        """The moments, 0 at their first use."""
        if not self.moments:
            self.moments = {name: torch.zeros_like(self.flat.weights) for name in MOMENTS}
        return self.moments

    def update(self, group: dict, factor: float | Tensor, absent_is_zero: bool) -> None:
        """One update, with gradient times factor, of the parameters that have a gradient.

        group: of a torch optimiser, lr, betas, eps and weight_decay; absent_is_zero: of all parameters, without
        gradient as if it were 0.
        """
        present = [True] * len(self.steps) if absent_is_zero else self.flat.present
        self.steps = [step + there for step, there in zip(self.steps, present, strict=True)]
        pieces = list(self._pieces(present))
        device, scale = self.flat.weights.device, None
        if not isinstance(factor, float) or factor != 1.0:
            scale = torch.as_tensor(factor, dtype=torch.float32, device=device).reciprocal()
        counts = {step: torch.full((), float(step), device=device) for step, *_ in pieces}
        tensors = (self.flat.weights, *self.filled_moments().values())
        own = self.flat.start
        for start, stop, gradient in self.flat.gradients(own=True):
            for step, first, last in pieces:
                begin, end = max(start, first, own), min(stop, last, own + len(self.flat.weights))
                if begin < end:
                    weights, *moments = (tensor[begin - own : end - own] for tensor in tensors)
                    _adam(step, weights, gradient[begin - start : end - start], moments, counts[step], group, scale)
        self.flat.publish()

    def _pieces(self, present: list[bool]):
        """Number of the update, begin and end of each stretch of neighbours for which it is the same."""
        first = 0
        for (step, there), run in groupby(zip(self.steps, present, strict=True)):
            last = first + sum(1 for _ in run) - 1
            if there:
                yield step, *self.flat.stretch(first, last)
            first = last + 1


def _adam(step: int, weights, gradient, moments, count: Tensor, group: dict, grad_scale: Tensor | None) -> None:
    beta1, beta2 = group["betas"]
    torch._fused_adamw_(
        [weights], [gradient], *([moment] for moment in moments), [], [count],
        lr=group["lr"], beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"],
        eps=group["eps"] / math.sqrt(1 - beta2**step), amsgrad=False, maximize=False, grad_scale=grad_scale,
    )  # fmt: skip


def _norm(gradient: Tensor) -> Tensor:
    whole = len(gradient) // ROW * ROW
    rows = torch.linalg.vector_norm(gradient[:whole].view(-1 if whole else 0, ROW), dim=1)
    return torch.linalg.vector_norm(torch.cat([rows, gradient[whole:]])).float()
