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

    Addresses: "decoder.18" all parameters of a layer, "decoder.18.ffn.fc1" one weight matrix, and for parameters
    outside the layers their module, as "encoder.embed_tokens"; a matrix that two modules share counts for the first. In
    the log: layers, parameters outside them, and as "decoder.fc1" the norm over the matrices of one role in all layers.
    """

    def gradients(self, scale: float | Tensor) -> None:
        with_gradient = [(name, p) for name, p in self.model.named_parameters() if p.grad is not None]
        gradients = _gradients_of(parameter for _name, parameter in with_gradient)
        norms = torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32)) * scale

        matrix_addresses = {}  # id of a parameter -> address of the weight matrix that it is
        for weight in branch_weights(self.model):
            matrix_addresses[id(weight.linear.weight)] = f"{weight.site}.{weight.role}"

        # each parameter counts for its layer or module, and a matrix of a branch also by itself
        squares: dict[str, float] = {}
        for (name, parameter), norm in zip(with_gradient, norms.tolist(), strict=True):
            addresses = [_layer_or_module(name)]
            if id(parameter) in matrix_addresses:
                addresses.append(matrix_addresses[id(parameter)])
            for address in addresses:
                squares[address] = squares.get(address, 0.0) + norm * norm
        self.measured = {address: math.sqrt(square) for address, square in squares.items()}

    @staticmethod
    def summary(values: Values) -> Values:
        squares: dict[str, float] = {}
        for address, norm in values.items():
            is_matrix = address.count(".") == 3  # "decoder.18.ffn.fc1"
            key = _stack_and_role(address) if is_matrix else address
            squares[key] = squares.get(key, 0.0) + norm * norm
        return {key: math.sqrt(square) for key, square in squares.items()}


@register_probe("gradient_l1")
class GradientL1(Probe):
    """Mean absolute element of the gradient of the mean loss per token (natural log), before clipping.

    This is the L1 norm over the number of elements. Addresses: "decoder.18.ffn.fc2" one weight matrix. In the log: the
    mean over the matrices of one role, as "decoder.fc2".
    """

    def gradients(self, scale: float | Tensor) -> None:
        with_gradient = [weight for weight in branch_weights(self.model) if weight.linear.weight.grad is not None]
        if not with_gradient:  # all are frozen
            return
        gradients = _gradients_of(weight.linear.weight for weight in with_gradient)
        sums = torch.stack(torch._foreach_norm(gradients, 1, dtype=torch.float32)) * scale
        for weight, total in zip(with_gradient, sums.tolist(), strict=True):
            self.measured[f"{weight.site}.{weight.role}"] = total / weight.linear.weight.numel()

    @staticmethod
    def summary(values: Values) -> Values:
        return mean_by(_stack_and_role, values)


def _gradients_of(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients of parameters, without None."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _stack_and_role(address: str) -> str:
    """Map "decoder.18.ffn.fc2" to "decoder.fc2"."""
    words = address.split(".")
    return f"{words[0]}.{words[-1]}"


def _layer_or_module(name: str) -> str:
    """Map "encoder.layers.0.fc1.bias" to "encoder.1", "decoder.embed_tokens.weight" to "decoder.embed_tokens"."""
    words = name.split(".")
    if words[1] == "layers":
        return f"{words[0]}.{int(words[2]) + 1}"
    return ".".join(words[:-1])
