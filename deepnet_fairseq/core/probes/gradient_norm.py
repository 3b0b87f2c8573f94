"""Gradient norms by layer and by weight, L2 and L1."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..initialisation import branch_weights
from .base import Probe, Values, mean_by, register_probe


@register_probe("gradient_norm")
class GradientNorm(Probe):
    """L2 norms of the gradient of the mean loss per token (natural log), before clipping.

    Addresses: "decoder.18" all parameters of a layer, "decoder.18.ffn.fc1" one weight matrix, "encoder.embed_tokens"
    and the like parameters outside the layers; a shared matrix is named after its first place. In the log: layers,
    parameters outside them, and as "decoder.fc1" the norm over all weights of one role.
    """

    def gradients(self, scale: float | Tensor) -> None:
        named = [(name, p, p.grad) for name, p in self.model.named_parameters() if p.grad is not None]
        norms = torch.stack(torch._foreach_norm([grad for *_, grad in named], 2, dtype=torch.float32)) * scale
        weights = {id(weight.linear.weight): f"{weight.site}.{weight.role}" for weight in branch_weights(self.model)}
        squares: dict[str, float] = {}
        for (name, parameter, _grad), norm in zip(named, norms.tolist(), strict=True):
            for address in (_owner(name), weights.get(id(parameter))):
                if address:
                    squares[address] = squares.get(address, 0.0) + norm * norm
        self.found = {address: math.sqrt(square) for address, square in squares.items()}

    @staticmethod
    def summary(values: Values) -> Values:
        squares: dict[str, float] = {}
        for address, norm in values.items():
            words = address.split(".")
            key = f"{words[0]}.{words[-1]}" if len(words) == 4 else address
            squares[key] = squares.get(key, 0.0) + norm * norm
        return {key: math.sqrt(square) for key, square in squares.items()}


@register_probe("gradient_l1")
class GradientL1(Probe):
    """L1 norm / elements of the gradient of the mean loss per token (natural log), before clipping.

    This is the mean absolute element. Addresses: "decoder.18.ffn.fc2" one weight matrix. In the log: the mean over
    layers, as "decoder.fc2".
    """

    def gradients(self, scale: float | Tensor) -> None:
        graded = [(w, grad) for w in branch_weights(self.model) if (grad := w.linear.weight.grad) is not None]
        if graded:  # not all frozen
            sums = torch.stack(torch._foreach_norm([grad for _, grad in graded], 1, dtype=torch.float32)) * scale
            for (weight, grad), norm in zip(graded, sums.tolist(), strict=True):
                self.found[f"{weight.site}.{weight.role}"] = norm / grad.numel()

    @staticmethod
    def summary(values: Values) -> Values:
        return mean_by(lambda address: f"{address.split('.')[0]}.{address.split('.')[-1]}", values)


def _owner(name: str) -> str:
    """Map "encoder.layers.0.fc1.bias" to "encoder.1", "decoder.embed_tokens.weight" to "decoder.embed_tokens"."""
    words = name.split(".")
    if words[1] == "layers":
        return f"{words[0]}.{int(words[2]) + 1}"
    return ".".join(words[:-1])
