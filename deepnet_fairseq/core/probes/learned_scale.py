"""Distribution of the factors that a method learns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .base import Probe, Values, kind, mean_by, register_probe

STATISTICS = {"median": 0.5, "min": 0.0, "max": 1.0}  # as quantiles
ADDED = {"bias", "shift"}  # parameters that are no factors


@register_probe("learned_scale")
class LearnedScale(Probe):
    """Median, minimum and maximum of every vector or number that a method's slots multiply by.

    These are LayerNorm's gains, and factors on heads, shortcuts and branches. Addresses: "decoder.3.ffn.inner.median"
    the gain of the LayerNorm in that slot of methods/base.py, "decoder.3.self_attn.inner.c.max" a factor that its
    method calls c, "decoder.ending.scale.min" one at a stack's end; where one slot holds several LayerNorms, each by
    its name. A matrix is taken row by row without its zeros, which are DLCL's weights of layers still to come; that
    of an nn.Linear is no factor. A method that learns no factors gives none. In the log: medians, their mean over
    layers, as "decoder.ffn.inner".
    """

    def values(self) -> Values:
        levels = torch.tensor([*STATISTICS.values()], device=next(self.model.parameters()).device)
        quantiles = {address: scale.quantile(levels) for address, scale in scales(self.model)}
        if not quantiles:
            return {}

        by_address = torch.stack([*quantiles.values()]).tolist()  # one host-device synchronisation for all
        values = {}
        for address, numbers in zip(quantiles, by_address, strict=True):
            for name, number in zip(STATISTICS, numbers, strict=True):
                values[f"{address}.{name}"] = number
        return values

    @staticmethod
    def summary(values: Values) -> Values:
        medians = {where: value for where, value in values.items() if where.endswith(".median")}
        return mean_by(lambda address: kind(address.removesuffix(".median")), medians)


def scales(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield address and values, float32 and flat, of all learned factors in the slots."""
    for stack in model.stacks().values():
        for place, slot in stack.slots():
            yield from _scales_of(place, slot)


def _scales_of(place: str, slot: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield address and values of the learned factors in one slot; place: the slot's address."""
    matrices = {module.weight for module in slot.modules() if isinstance(module, nn.Linear)}
    factors = {}
    for name, parameter in slot.named_parameters():
        if _last_word(name) not in ADDED and parameter not in matrices:
            factors[name] = parameter

    names_alike = Counter(map(_last_word, factors))
    for name, parameter in factors.items():
        words = name.split(".")
        if names_alike[words[-1]] == 1:  # no module's name is needed to tell it from others
            words = words[-1:]
        if words[-1] == "weight":
            words = words[:-1]
        address = ".".join([place, *words])

        values = parameter.detach().float()
        if values.dim() < 2:
            yield address, values.flatten()
            continue
        for index, row in enumerate(values):
            if row.any():
                yield f"{address}.{index}", row[row != 0]


def _last_word(name: str) -> str:
    return name.rpartition(".")[2]
