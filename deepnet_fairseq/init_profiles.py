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

ATTENTION_INPUTS = ("q", "k", "v")


def xavier_std(linear: nn.Linear) -> float:
    return math.sqrt(2 / (linear.in_features + linear.out_features))


def torch_std(linear: nn.Linear) -> float:
    """Std of U(-1/sqrt(fan_in), 1/sqrt(fan_in)), torch's default for a Linear."""
    return 1 / math.sqrt(3 * linear.in_features)


def draw_normal(tensor: Tensor, std: float) -> None:
    nn.init.normal_(tensor, 0.0, std)


def draw_uniform(tensor: Tensor, std: float) -> None:
    """U(-b, b) of the given standard deviation: b = sqrt(3) std."""
    nn.init.uniform_(tensor, -math.sqrt(3) * std, math.sqrt(3) * std)


@dataclass(frozen=True)
class InitProfile:
    """draw: fills a tensor with zero mean and a given std; weight_std, bias_std: (role, matrix) -> std."""

    draw: Callable[[Tensor, float], None]
    weight_std: Callable[[str, nn.Linear], float]
    bias_std: Callable[[str, nn.Linear], float]


def _attention_gain(role: str, linear: nn.Linear) -> float:
    same_width = linear.in_features == linear.out_features
    return math.sqrt(0.5) if role in ATTENTION_INPUTS and same_width else 1.0


def _head_weight(role: str, linear: nn.Linear) -> float:
    if role in ("fc1", "fc2"):
        return torch_std(linear)
    return _attention_gain(role, linear) * xavier_std(linear)


PROFILES = {
    "fairseq_head": InitProfile(
        draw_uniform, _head_weight, lambda role, linear: 0.0 if role == "out" else torch_std(linear)
    ),
    "xavier_legacy": InitProfile(
        draw_uniform,
        lambda role, linear: _attention_gain(role, linear) * xavier_std(linear),
        lambda role, linear: 0.0,
    ),
    "xavier_normal": InitProfile(draw_normal, lambda role, linear: xavier_std(linear), lambda role, linear: 0.0),
    "xavier_uniform": InitProfile(draw_uniform, lambda role, linear: xavier_std(linear), lambda role, linear: 0.0),
}
