"""Largest numbers of a training, to see how far it is from the limits of half precision.

An address names a part of the model (base.py), or stands for the gradient.
"""

from __future__ import annotations

from collections import Counter
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
    """Largest absolute values in activations and gradient, to compare with fp16's largest number 65504.

    Addresses
    "encoder"   over the outputs of all modules of the encoder that have no modules inside, and over its residual sums
                (shortcut + branch)
    "decoder"   the same for the decoder, with the scores of the vocabulary, which its projection makes
    "lm_head"   the same for the head of a masked language model, with its scores
    A module that two parts of the model share, as an embedding, counts for the one that calls it.
    "gradient"  over the elements of the gradient of the mean loss per token, if any parameter has one. In half
                precision fairseq holds another gradient, that of the loss's sum over tokens times the loss scale.
    """

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.largest: dict[str, torch.Tensor] = {}  # address -> largest value (), on this rank
        self.running = ""  # the part of the model that was called last

        parts_with = Counter(module for part in model.children() for module in part.modules())
        self.shared = {module for module, parts in parts_with.items() if parts > 1}

    def hooks(self, masks: dict[str, Tensor]) -> Iterator:
        """Attach hooks to the modules that compute.

        Padding and dummy batches count too, because they can overflow like tokens; the masks are not read.
        """
        # modules that compute something of their own, whatever is inside them
        computing = {residual for _site, residual in residuals(self.model)} | {self.model.vocabulary_projection()}
        for name, part in self.model.named_children():
            yield part.register_forward_pre_hook(partial(self._enter, name))
            for module in part.modules():
                if module in computing or not list(module.children()):
                    yield module.register_forward_hook(partial(self._keep_largest_output, name))

    def _enter(self, name: str, part: nn.Module, inputs: tuple) -> None:
        """Forward pre-hook of the part `name` of the model: note that it runs."""
        self.running = name

    @torch.no_grad()
    def _keep_largest_output(self, address: str, module: nn.Module, inputs: tuple, output: Any) -> None:
        """Forward hook of a module: keep the largest absolute value of its output, if that is one float tensor.

        address: of the part of the model to which the module belongs. A shared module has a hook for each of its parts.
        """
        if module in self.shared and address != self.running:
            return
        if torch.is_tensor(output) and output.is_floating_point():
            largest = output.detach().abs().amax().float()
            self._keep_larger(address, largest)

    def _keep_larger(self, address: str, value: Tensor) -> None:
        """Keep `value` () as the largest value of `address`, unless a larger one was seen before; NaN counts most."""
        before = self.largest.get(address, value)
        self.largest[address] = torch.maximum(before, value)

    def gradients(self, scale: float | Tensor) -> None:
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        gradients = [gradient for gradient in gradients if gradient.numel()]  # no elements have no largest
        if not gradients:  # all parameters are frozen, and torch cannot stack none
            return
        largest_of_each = torch._foreach_norm(gradients, float("inf"), dtype=torch.float32)
        largest = torch.stack(largest_of_each).amax()
        self._keep_larger("gradient", largest * scale)

    def values(self) -> Values:
        return over_ranks(self.largest, torch.distributed.ReduceOp.MAX)
