"""Distribution of the factors that a method learns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .base import Probe, Values, mean_by, register_probe, without_layer

STATISTICS = {"median": 0.5, "min": 0.0, "max": 1.0}  # name -> quantile
NOT_FACTORS = {"bias", "shift"}  # names of parameters in slots that are added or subtracted


@register_probe("learned_scale")
class LearnedScale(Probe):
    """Median, minimum and maximum of every learned vector or number by which the modules in a method's slots multiply.

    These are gains of LayerNorms, and factors on heads, shortcuts and branches; there are none in a method that learns
    no factors. Addresses end in the statistic:
    "decoder.3.ffn.inner.median"       the gain of the LayerNorm in that slot (see methods/base.py); where one slot
                                       holds several LayerNorms, each has its name in the address
    "decoder.3.self_attn.inner.c.max"  a parameter that the method calls c
    "decoder.ending.scale.min"         one in a slot at a stack's end
    A matrix (DLCL's weights of earlier layers) is taken row by row without its zeros; that of an nn.Linear is no
    factor. In the log: the mean of the medians over layers, as "decoder.ffn.inner".
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
        return mean_by(lambda address: without_layer(address.removesuffix(".median")), medians)


def scales(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield address and values, float32 (n,), of each vector of learned factors in the slots of a DeepModel."""
    for stack in model.stacks().values():
        for slot_address, slot in stack.slots():
            yield from _scales_of(slot_address, slot)


def _scales_of(slot_address: str, slot: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield address and values, float32 (n,), of each vector of learned factors in one slot."""
    matrices = {module.weight for module in slot.modules() if isinstance(module, nn.Linear)}
    factors = {}
    for name, parameter in slot.named_parameters():
        if _last_word(name) not in NOT_FACTORS and parameter not in matrices:
            factors[name] = parameter

    count_of_name = Counter(map(_last_word, factors))
    for name, parameter in factors.items():
        # the address is that of the slot and the parameter's name, "norms.0.weight", as far as it is needed
        words = name.split(".")
        if count_of_name[words[-1]] == 1:  # no module's name is needed to tell it from others
            words = words[-1:]
        if words[-1] == "weight":
            words = words[:-1]
        address = ".".join([slot_address, *words])

        values = parameter.detach().float()
        if values.dim() < 2:
            yield address, values.flatten()
            continue
        for index, row in enumerate(values):
            if row.any():
                yield f"{address}.{index}", row[row != 0]


def _last_word(name: str) -> str:
    """Map "norms.0.weight" to "weight"."""
    return name.rpartition(".")[2]
