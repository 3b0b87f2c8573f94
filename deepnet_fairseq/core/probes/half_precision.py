"""Largest numbers of a training, to see how far it is from the limits of half precision."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..profile import residuals
from .base import Probe, Values, over_ranks, register_probe

LARGEST_FP16 = 65504.0  # the largest number of float16


@register_probe("half_precision")
class HalfPrecision(Probe):
    """Largest absolute values, to compare with fp16's largest number 65504.

    Addresses: "encoder", "decoder" and the model's further parts over the outputs of all modules in them, sums of
    shortcut and branch and scores of the vocabulary included; "gradient" over the elements of the gradient of the mean
    loss per token (what fairseq holds in half precision is that of the summed loss times the loss scale).
    """

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.largest: dict[str, torch.Tensor] = {}  # address -> number (), of this rank

    def hooks(self, masks: dict[str, Tensor]) -> Iterator:
        # modules without modules inside
        for name, part in self.model.named_children():
            for module in part.modules():
                if not list(module.children()):
                    yield module.register_forward_hook(partial(self._visit, name))

        # residual merges that have modules inside; the others were among those above
        for site, residual in residuals(self.model):
            if list(residual.children()):
                yield residual.register_forward_hook(partial(self._visit, site.stack))

    @torch.no_grad()
    def _visit(self, address: str, module: nn.Module, inputs: tuple, output: Any) -> None:
        """Forward hook of a module: keep the largest absolute value of its output."""
        if torch.is_tensor(output) and output.is_floating_point():
            largest = output.detach().abs().amax().float()
            self._keep_larger(address, largest)

    def _keep_larger(self, address: str, value: Tensor) -> None:
        """Set the largest value of `address` to `value` (), if that is larger."""
        before = self.largest.get(address, value)
        self.largest[address] = torch.maximum(before, value)

    def gradients(self, scale: float | Tensor) -> None:
        grads = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        largest_of_each = torch._foreach_norm(grads, float("inf"), dtype=torch.float32)
        largest = torch.stack(largest_of_each).amax()
        self._keep_larger("gradient", largest * scale)

    def values(self) -> Values:
        return over_ranks(self.largest, torch.distributed.ReduceOp.MAX)
