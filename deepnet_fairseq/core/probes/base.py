"""Base class and registry of probes. A probe watches one update.

Shapes: B sentences, T tokens, C width. A new probe is a subclass under @register_probe, imported in
core/probes/__init__.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import UserError

Values = dict[str, float]  # address inside the model, as "decoder.18" or "encoder.1.self_attn" -> value

PROBES: dict[str, type[Probe]] = {}


class FixedBatch(NamedTuple):
    """Batch that stays the same throughout a run.

    net_input: of a fairseq sample; reference: result of model_update.outputs at theta_0, stack -> (tokens, C).
    """

    net_input: dict
    reference: dict[str, Tensor]


class Probe:
    """One quantity of one update. A new instance watches each probed update.

    model: the bare model, without DDP's wrapper. A subclass says in its docstring what its values are, their unit, and
    which paper plots them.
    """

    name: ClassVar[str]
    needs_fixed_batch: ClassVar[bool] = False  # whether `begin` needs a FixedBatch

    def __init__(self, model: nn.Module):
        self.model = model
        self.found: Values = {}

    def begin(self, held: FixedBatch | None) -> None:
        """Prepare, once, before the update's first forward pass; held: the run's, if any of its probes needs one."""

    def hooks(self, masks: dict[str, Tensor]) -> Iterator:
        """Attach hooks for one forward pass and yield their handles; masks[stack] (B, T) is True at tokens."""
        yield from ()

    def gradients(self, scale: float | Tensor) -> None:
        """Read the update's gradients, once, when they are in place; times `scale` they are those of the mean loss."""

    def values(self) -> Values:
        """Return the measured values by address, the same on every rank."""
        return self.found

    @staticmethod
    def summary(values: Values) -> Values:
        """Reduce the result of `values` to the entries of fairseq's log; by default all of it."""
        return values


def register_probe(name: str) -> Callable[[type[Probe]], type[Probe]]:
    """Class decorator that offers a Probe as `--deepnet-probe NAME`, in place of another of that name."""

    def add(cls: type[Probe]) -> type[Probe]:
        cls.name = name
        PROBES[name] = cls
        return cls

    return add


def get_probes(names: str | None) -> list[type[Probe]]:
    """Return the probes of a comma-separated list, all for "all", none for None; UserError for an unknown name."""
    if names is None:
        return []
    if names == "all":
        return list(PROBES.values())
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in PROBES]
    if unknown or not wanted:
        raise UserError(f"--deepnet-probe {names}: choose some of {','.join(PROBES)}, or all")
    return [PROBES[name] for name in dict.fromkeys(wanted)]


class TokenSums(Probe):
    """Probe that accumulates sums per address, over tokens of all forward passes and ranks of the update."""

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.sums: dict[str, Tensor] = {}

    def add(self, address: str, *sums: Tensor) -> None:
        """Add numbers, each (), to the sums of `address`, in float64 on the device of the last one."""
        device = sums[-1].device
        stacked = torch.stack([torch.as_tensor(value, device=device).double() for value in sums])
        self.sums[address] = self.sums.get(address, 0) + stacked

    @staticmethod
    def summary(values: Values) -> Values:
        """Return the mean over layers, by kind of branch."""
        return mean_by(kind, values)


def over_ranks(tensors: dict[str, Tensor], operation: Any = torch.distributed.ReduceOp.SUM) -> dict[str, Any]:
    """All-reduce tensors of one shape by address, on all ranks, and return numbers: sums, or by `operation`."""
    if not tensors:
        return {}
    stacked = torch.stack(list(tensors.values()))
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(stacked, operation)
    return dict(zip(tensors, stacked.tolist(), strict=True))


def kind(address: str) -> str:
    """Drop the layer from an address: "decoder.18.ffn" -> "decoder.ffn"."""
    return ".".join(word for word in address.split(".") if not word.isdigit())


def mean_by(name: Callable[[str], str], values: Values) -> Values:
    """Return name -> mean of the values whose address has that name."""
    groups: dict[str, list[float]] = {}
    for address, value in values.items():
        group = groups.setdefault(name(address), [])
        group.append(value)
    return {key: sum(numbers) / len(numbers) for key, numbers in groups.items()}
