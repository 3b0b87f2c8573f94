"""Gradient norms by layer and by weight, L2 and L1."""

from __future__ import annotations

import math
from collections.abc import Iterable

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
        graded = [(name, p) for name, p in self.model.named_parameters() if p.grad is not None]
        gradients = _gradients(parameter for _name, parameter in graded)
        norms = torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32)) * scale

        matrices = {}
        for weight in branch_weights(self.model):
            matrices[id(weight.linear.weight)] = f"{weight.site}.{weight.role}"
        squares: dict[str, float] = {}
        for (name, parameter), norm in zip(graded, norms.tolist(), strict=True):
            addresses = [_owner(name)]
            if id(parameter) in matrices:
                addresses.append(matrices[id(parameter)])
            for address in addresses:
                squares[address] = squares.get(address, 0.0) + norm * norm
        self.found = {address: math.sqrt(square) for address, square in squares.items()}

    @staticmethod
    def summary(values: Values) -> Values:
        squares: dict[str, float] = {}
        for address, norm in values.items():
            words = address.split(".")
            is_matrix = len(words) == 4
            key = f"{words[0]}.{words[-1]}" if is_matrix else address
            squares[key] = squares.get(key, 0.0) + norm * norm
        return {key: math.sqrt(square) for key, square in squares.items()}


@register_probe("gradient_l1")
class GradientL1(Probe):
    """L1 norm / elements of the gradient of the mean loss per token (natural log), before clipping.

    This is the mean absolute element. Addresses: "decoder.18.ffn.fc2" one weight matrix. In the log: the mean over
    layers, as "decoder.fc2".
    """

    def gradients(self, scale: float | Tensor) -> None:
        graded = [weight for weight in branch_weights(self.model) if weight.linear.weight.grad is not None]
        if not graded:  # all are frozen
            return
        gradients = _gradients(weight.linear.weight for weight in graded)
        sums = torch.stack(torch._foreach_norm(gradients, 1, dtype=torch.float32)) * scale
        for weight, total in zip(graded, sums.tolist(), strict=True):
            self.found[f"{weight.site}.{weight.role}"] = total / weight.linear.weight.numel()

    @staticmethod
    def summary(values: Values) -> Values:
        return mean_by(_without_layer, values)


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _without_layer(address: str) -> str:
    """Map "decoder.18.ffn.fc2" to "decoder.fc2"."""
    words = address.split(".")
    return f"{words[0]}.{words[-1]}"


def _owner(name: str) -> str:
    """Map "encoder.layers.0.fc1.bias" to "encoder.1", "decoder.embed_tokens.weight" to "decoder.embed_tokens"."""
    words = name.split(".")
    if words[1] == "layers":
        return f"{words[0]}.{int(words[2]) + 1}"
    return ".".join(words[:-1])
