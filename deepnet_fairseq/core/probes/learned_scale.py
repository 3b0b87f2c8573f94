"""Distribution of the factors that a method learns.

A slot is a place in a layer, or at a stack's beginning or end, into which a method may put a module (methods/base.py).
The address of a slot is "decoder.3.ffn.inner" (stack, layer from 1, branch, slot) or "decoder.ending" (stack, slot).
"""

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
    "decoder.3.ffn.inner.median"       the gain of the LayerNorm in that slot; where one slot holds several LayerNorms,
                                       each has its name in the address
    "decoder.3.self_attn.inner.c.max"  a parameter that the method calls c
    "decoder.ending.scale.min"         one in a slot at a stack's end
    Each row of a matrix (DLCL's weights of earlier layers) is a vector, and its zeros are left out; the matrix of an
    nn.Linear is no factor. In the log: the mean of the medians over layers, as "decoder.ffn.inner".
    """

    def values(self) -> Values:
        device = next(self.model.parameters()).device
        levels = torch.tensor([*STATISTICS.values()], device=device)
        # address without the statistic -> (3,), in the order of STATISTICS
        quantiles = {address: scale.quantile(levels) for address, scale in factors_in_slots(self.model)}
        if not quantiles:  # the method learns no factors, and torch cannot stack none
            return {}

        by_address = torch.stack([*quantiles.values()]).tolist()  # one host-device synchronisation for all
        values = {}
        for address, numbers in zip(quantiles, by_address, strict=True):
            for name, number in zip(STATISTICS, numbers, strict=True):
                values[f"{address}.{name}"] = number
        return values

    @staticmethod
    def summary(values: Values) -> Values:
        """Return the mean of the medians over layers: "decoder.ffn.inner" of all "decoder.N.ffn.inner.median"."""
        medians = {}
        for address, value in values.items():
            if address.endswith(".median"):
                medians[address.removesuffix(".median")] = value
        return mean_by(without_layer, medians)


def factors_in_slots(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield address, without the statistic, and values, float32 (n,), of each vector of factors in a DeepModel's slots.

    A single factor is a vector of one.
    """
    for stack in model.stacks().values():
        for slot_address, slot in stack.slots():
            yield from _factors_of(slot_address, slot)


def _factors_of(slot_address: str, slot: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield address and values, float32 (n,), of each vector of learned factors in one slot.

    slot_address: as "decoder.3.ffn.inner"; slot: the module in it.
    """
    linear_weights = {module.weight for module in slot.modules() if isinstance(module, nn.Linear)}
    factors = {}  # name in the slot's module, as "norms.0.weight" -> parameter
    for name, parameter in slot.named_parameters():
        if _last_word(name) not in NOT_FACTORS and parameter not in linear_weights:
            factors[name] = parameter

    count_of_last_word = Counter(map(_last_word, factors))
    for name, parameter in factors.items():
        # the address is that of the slot and as much of the parameter's name as tells it from the slot's others
        words = name.split(".")
        if count_of_last_word[words[-1]] == 1:
            words = words[-1:]
        if words[-1] == "weight":  # a LayerNorm's gain, or a matrix, goes by the name of its module or slot
            words = words[:-1]
        address = ".".join([slot_address, *words])

        values = parameter.detach().float()
        if values.dim() < 2:
            yield address, values.flatten()
            continue
        for index, row in enumerate(values):  # of a matrix
            if row.any():
                yield f"{address}.{index}", row[row != 0]


def _last_word(name: str) -> str:
    """Map "norms.0.weight" to "weight"."""
    return name.rpartition(".")[2]
