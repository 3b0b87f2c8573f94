"""Norms of the loss's gradient by layer and by weight matrix: L2 norms, and means of absolute values.

The loss is the mean over the update's tokens, in nats; its gradient is read before clipping. A role says what a branch
uses a weight matrix for, "q", "k", "v" or "out" in attention, "fc1" or "fc2" in feed-forward (slots.Weight). An address
names a part of the model (base.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ..initialisation import branch_weights
from .base import Probe, Values, mean_by, register_probe


@register_probe("gradient_norm")
class GradientNorm(Probe):
    """L2 norms of the loss's gradient by all parameters of a part of the model.

    Addresses
    "decoder.18"            all parameters of a layer
    "decoder.18.ffn.fc1"    one weight matrix
    "encoder.embed_tokens"  a module outside the layers; a matrix that two modules share counts for the first
    In the log: layers, modules outside them, and as "decoder.fc1" the norm over the matrices of one role in all layers.
    """

    def gradients(self, scale: float | Tensor) -> None:
        with_gradient = [(name, p) for name, p in self.model.named_parameters() if p.grad is not None]
        if not with_gradient:  # all are frozen, and torch cannot stack none
            return
        gradients = _gradients_of(parameter for _name, parameter in with_gradient)
        norm_of_each = torch._foreach_norm(gradients, 2, dtype=torch.float32)  # one kernel for many tensors
        norms = torch.stack(norm_of_each) * scale

        matrix_addresses = {}  # id of a parameter -> "decoder.18.ffn.fc1" if it is a branch's weight matrix
        for weight in branch_weights(self.model):
            matrix_addresses[id(weight.linear.weight)] = f"{weight.site}.{weight.role}"

        # each parameter counts for its layer or module, and a matrix of a branch also by itself
        sums_of_squares: dict[str, float] = {}
        for (name, parameter), norm in zip(with_gradient, norms.tolist(), strict=True):
            addresses = [_layer_or_module(name)]
            if id(parameter) in matrix_addresses:
                addresses.append(matrix_addresses[id(parameter)])
            for address in addresses:
                sums_of_squares[address] = sums_of_squares.get(address, 0.0) + norm * norm
        self.measured = {address: math.sqrt(total) for address, total in sums_of_squares.items()}

    @staticmethod
    def summary(values: Values) -> Values:
        """Return the norms, those of weight matrices joined over layers: "decoder.fc1" of all "decoder.N.ffn.fc1"."""
        sums_of_squares: dict[str, float] = {}
        for address, norm in values.items():
            key = _stack_and_role(address) if _is_matrix(address) else address
            sums_of_squares[key] = sums_of_squares.get(key, 0.0) + norm * norm
        return {key: math.sqrt(total) for key, total in sums_of_squares.items()}


@register_probe("gradient_l1")
class GradientL1(Probe):
    """Mean absolute value of the elements of the loss's gradient by a weight matrix.

    It is the L1 norm divided by the number of elements. Addresses: of weight matrices, "decoder.18.ffn.fc2". In the
    log: the mean over the matrices of one role in all layers, as "decoder.fc2".
    """

    def gradients(self, scale: float | Tensor) -> None:
        with_gradient = [weight for weight in branch_weights(self.model) if weight.linear.weight.grad is not None]
        if not with_gradient:  # all are frozen, and torch cannot stack none
            return
        gradients = _gradients_of(weight.linear.weight for weight in with_gradient)
        norm_of_each = torch._foreach_norm(gradients, 1, dtype=torch.float32)  # one kernel for many tensors
        norms = torch.stack(norm_of_each) * scale
        for weight, norm in zip(with_gradient, norms.tolist(), strict=True):
            self.measured[f"{weight.site}.{weight.role}"] = norm / weight.linear.weight.numel()

    @staticmethod
    def summary(values: Values) -> Values:
        return mean_by(_stack_and_role, values)


def _gradients_of(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients of parameters, leaving out parameters without one."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _is_matrix(address: str) -> bool:
    """Tell whether an address is that of a weight matrix, as "decoder.18.ffn.fc1".

    The address of a module outside the layers may have as many words: DLCL's "decoder.mixer.norms.1".
    """
    words = address.split(".")
    return len(words) == 4 and words[1].isdigit()


def _stack_and_role(address: str) -> str:
    """Map "decoder.18.ffn.fc2" to "decoder.fc2"."""
    words = address.split(".")
    return f"{words[0]}.{words[-1]}"


def _layer_or_module(name: str) -> str:
    """Map a parameter's name in the model to the address of its layer, or else of its module.

    "encoder.layers.0.fc1.bias" -> "encoder.1", and "decoder.embed_tokens.weight" -> "decoder.embed_tokens".
    """
    words = name.split(".")
    if words[1] == "layers":
        return f"{words[0]}.{int(words[2]) + 1}"
    return ".".join(words[:-1])
