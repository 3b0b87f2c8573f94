"""Distance of a run from the limits of half precision."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..profile import residuals
from .base import Probe, Values, over_ranks, register_probe

LARGEST = 65504.0  # of fp16


@register_probe("half_precision")
class HalfPrecision(Probe):
    """Largest absolute values, to compare with fp16's largest number 65504.

    "encoder", "decoder" and further parts of the model: over the outputs of their modules, the sums of shortcut and
    branch and the scores of the vocabulary included; "gradient": over the elements of the gradient of the mean loss per
    token. fairseq's gradients in half precision are those of the summed loss times the loss scale.
    """

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.largest: dict[str, torch.Tensor] = {}

    def hooks(self, masks: dict[str, Tensor]) -> Iterator:
        for name, part in self.model.named_children():
            for module in part.modules():
                if not list(module.children()):
                    yield module.register_forward_hook(partial(self._visit, name))

        # merges that have modules inside; the others were among those above
        for site, residual in residuals(self.model):
            if list(residual.children()):
                yield residual.register_forward_hook(partial(self._visit, site.stack))

    @torch.no_grad()
    def _visit(self, address: str, module: nn.Module, inputs: tuple, output: Any) -> None:
        if torch.is_tensor(output) and output.is_floating_point():
            largest = output.detach().abs().amax().float()
            self._keep_larger(address, largest)

    def _keep_larger(self, address: str, value: Tensor) -> None:
        before = self.largest.get(address, value)
        self.largest[address] = torch.maximum(before, value)

    def gradients(self, scale: float | Tensor) -> None:
        grads = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        largest_of_each = torch._foreach_norm(grads, float("inf"), dtype=torch.float32)
        largest = torch.stack(largest_of_each).amax()
        self._keep_larger("gradient", largest * scale)

    def values(self) -> Values:
        return over_ranks(self.largest, torch.distributed.ReduceOp.MAX)
