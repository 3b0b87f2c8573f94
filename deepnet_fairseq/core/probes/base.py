"""Base class and registry of probes, which measure something inside the model in some updates of a training.

An address names a part of the model, as "decoder.18" (a layer, counted from 1), "decoder.18.ffn" (a branch of it) or
"encoder". Shapes: B sentences, T tokens, C width in features. A new probe is a subclass under @register_probe, imported
in core/probes/__init__.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import UserError

Values = dict[str, float]  # address -> value

PROBES: dict[str, type[Probe]] = {}  # by name; `register_probe` fills it


class FixedBatch(NamedTuple):
    """Batch that stays the same throughout a run.

    net_input: of a fairseq sample; reference: stack -> output (tokens, C) of the model before its first update, as
    model_update.outputs returns it.
    """

    net_input: dict
    reference: dict[str, Tensor]


HeldBatch = FixedBatch  # its name until 0.1; gone with the next release


class Probe:
    """Measurement of one quantity in one update; each probed update gets a new instance.

    A Session calls begin, then hooks for each forward pass, then gradients and values. A subclass overrides those that
    it needs, and says in its docstring what its values are, their unit, and which paper plots them.

    model: a DeepModel, without DDP's wrapper; measured: what `values` returns unless a subclass overrides it.
    """

    name: ClassVar[str]
    needs_fixed_batch: ClassVar[bool] = False  # whether `begin` needs a FixedBatch

    def __init__(self, model: nn.Module):
        self.model = model
        self.measured: Values = {}

    def begin(self, fixed_batch: FixedBatch | None) -> None:
        """Prepare, once, before the update's first forward pass; None in a run without probes that need the batch."""

    def hooks(self, masks: dict[str, Tensor]) -> Iterator:
        """Attach hooks for one forward pass and yield their handles.

        masks: stack -> (B, T), True at tokens, False at padding; all False for a batch that does not count.
        """
        yield from ()

    def gradients(self, scale: float | Tensor) -> None:
        """Read the gradients of the model's parameters, once, when all forward and backward passes are done.

        scale: factor that makes of them the gradients of the mean loss.
        """

    def values(self) -> Values:
        """Return the measured values, which are the same on every rank; every rank calls this at the same time."""
        return self.measured

    @staticmethod
    def summary(values: Values) -> Values:
        """Reduce the result of `values` to the few that go to fairseq's log; by default all of it."""
        return values


def register_probe(name: str) -> Callable[[type[Probe]], type[Probe]]:
    """Class decorator that offers a Probe as `--deepnet-probe NAME`; it replaces another one of that name."""

    def add(cls: type[Probe]) -> type[Probe]:
        cls.name = name
        PROBES[name] = cls
        return cls

    return add


def get_probes(names: str | None) -> list[type[Probe]]:
    """Return the classes of a comma-separated list of probes, all for "all", none for None.

    Raises a UserError for an unknown name, and for a list without names.
    """
    if names is None:
        return []
    if names == "all":
        return list(PROBES.values())
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in PROBES]
    if unknown or not wanted:
        raise UserError(f"--deepnet-probe {names}", f"choose some of {','.join(PROBES)}, or all")
    return [PROBES[name] for name in dict.fromkeys(wanted)]  # each once


class TokenSums(Probe):
    """Base of probes that add up a few numbers for each address, over the tokens of all forward passes of an update.

    sums: address -> (numbers,), of this rank.
    """

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.sums: dict[str, Tensor] = {}

    def add(self, address: str, *numbers: Any) -> None:
        """Add numbers to the sums of `address`, in float64, on the device of the last one, which is a Tensor ()."""
        device = numbers[-1].device
        stacked = torch.stack([torch.as_tensor(number, device=device).double() for number in numbers])
        self.sums[address] = self.sums.get(address, 0) + stacked

    @staticmethod
    def summary(values: Values) -> Values:
        """Return the means over layers: "decoder.ffn" of "decoder.1.ffn", "decoder.2.ffn" and so on."""
        return mean_by(without_layer, values)


def over_ranks(tensors: dict[str, Tensor], operation: Any = torch.distributed.ReduceOp.SUM) -> dict[str, Any]:
    """Return the sum over all ranks (or what `operation` makes) of each tensor, as a number or a list of numbers.

    tensors: address -> tensor; all have one shape, and all ranks the same addresses.
    """
    if not tensors:
        return {}
    stacked = torch.stack(list(tensors.values()))
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(stacked, operation)
    return dict(zip(tensors, stacked.tolist(), strict=True))


def without_layer(address: str) -> str:
    """Drop the layer from an address: "decoder.18.ffn" -> "decoder.ffn"."""
    return ".".join(word for word in address.split(".") if not word.isdigit())


def mean_by(group_of: Callable[[str], str], values: Values) -> Values:
    """Return the mean of each group of values; group_of: maps an address to the name of its group."""
    groups: dict[str, list[float]] = {}
    for address, value in values.items():
        group = groups.setdefault(group_of(address), [])
        group.append(value)
    return {name: sum(numbers) / len(numbers) for name, numbers in groups.items()}
