"""Base initialisations by name: how each role's weight and bias are drawn before a method's gain.

fairseq_head   fairseq since March 2020 and every release after 0.9: q, k, v, out Xavier-uniform (q, k, v with gain
               1/sqrt2 when keys and values have the query's width), fc1, fc2 and all biases but out's
               U(-1/sqrt(fan_in), 1/sqrt(fan_in))
xavier_legacy  the older fairseq that Admin, T-Fixup, DLCL and DS-Init were defined on: fc1, fc2 Xavier-uniform too,
               all biases 0
xavier_normal, xavier_uniform  gain 1 for every role, all biases 0: DeepNorm's base and its admitted variant
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from ..transformer.slots import Weight

ATTENTION_INPUTS = ("q", "k", "v")


def xavier_std(linear: nn.Linear) -> float:
    """sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio 2010, equation 12)."""
    return math.sqrt(2 / (linear.in_features + linear.out_features))


def torch_std(linear: nn.Linear) -> float:
    """Std of U(-1/sqrt(fan_in), 1/sqrt(fan_in)), torch's default for a Linear."""
    return 1 / math.sqrt(3 * linear.in_features)


def draw_normal(tensor: Tensor, std: float) -> None:
    """N(0, std^2) into `tensor`, from torch's generator."""
    nn.init.normal_(tensor, 0.0, std)


def draw_uniform(tensor: Tensor, std: float) -> None:
    """U(-b, b) of the given standard deviation: b = sqrt(3) std."""
    nn.init.uniform_(tensor, -math.sqrt(3) * std, math.sqrt(3) * std)


@dataclass(frozen=True)
class InitProfile:
    """A base initialisation.

    draw: fills a tensor with zero mean and a given std; weight_std, bias_std: std of a matrix and of its bias, before
    the method's gain, which the bias does not get.
    """

    draw: Callable[[Tensor, float], None]
    weight_std: Callable[[Weight], float]
    bias_std: Callable[[Weight], float]


def _plain(weight: Weight) -> float:
    return xavier_std(weight.linear)


def _legacy(weight: Weight) -> float:
    same_width = weight.source_dim == weight.site.dim
    gain = math.sqrt(0.5) if weight.role in ATTENTION_INPUTS and same_width else 1.0
    return gain * xavier_std(weight.linear)


def _head(weight: Weight) -> float:
    return torch_std(weight.linear) if weight.role in ("fc1", "fc2") else _legacy(weight)


def _head_bias(weight: Weight) -> float:
    return 0.0 if weight.role == "out" else torch_std(weight.linear)


def _zero(weight: Weight) -> float:
    return 0.0


PROFILES = {
    "fairseq_head": InitProfile(draw_uniform, _head, _head_bias),
    "xavier_legacy": InitProfile(draw_uniform, _legacy, _zero),
    "xavier_normal": InitProfile(draw_normal, _plain, _zero),
    "xavier_uniform": InitProfile(draw_uniform, _plain, _zero),
}
