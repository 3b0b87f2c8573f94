"""What a probe is, and the registry of probes. A probe watches one update.

Shapes: B sentences, T tokens, C width. A probe of one's own is a subclass under @register_probe, imported in
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


class Held(NamedTuple):
    """A batch that stays the same all through a run.

    net_input: of a fairseq sample; reference: what model_update.outputs gave for it at theta_0, stack -> (tokens, C).
    """

    net_input: dict
    reference: dict[str, Tensor]


class Probe:
    """One quantity of one update. A new instance watches each probed update.

    model: the bare model, without DDP's wrapper. A subclass says in its docstring what its values are, their unit, and
    which paper plots them.
    """

    name: ClassVar[str]
    needs_held: ClassVar[bool] = False  # is `begin` to be given a Held?

    def __init__(self, model: nn.Module):
        self.model = model
        self.found: Values = {}

    def begin(self, held: Held | None) -> None:
        """Called once, before the update's first forward pass; held: the run's, if any of its probes needs one."""

    def hooks(self, masks: dict[str, Tensor]) -> Iterator:
        """Attaches hooks for one forward pass and yields their handles; masks[stack] (B, T) is True at tokens."""
        yield from ()

    def gradients(self, scale: float | Tensor) -> None:
        """Called once, with the update's gradients in place; times `scale` they are those of the mean loss."""

    def values(self) -> Values:
        """What was found, by address; the same on every rank."""
        return self.found

    @staticmethod
    def summary(values: Values) -> Values:
        """What goes into fairseq's log, of what `values` gave; by default all of it."""
        return values


def register_probe(name: str) -> Callable[[type[Probe]], type[Probe]]:
    """Class decorator: offers a Probe as `--deepnet-probe NAME`, in place of another of that name."""

    def add(cls: type[Probe]) -> type[Probe]:
        cls.name = name
        PROBES[name] = cls
        return cls

    return add


def get_probes(names: str | None) -> list[type[Probe]]:
    """The probes of a list with commas, all of them for "all", none for None; UserError for one that is not there."""
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
    """A probe that adds up, over tokens of all forward passes and ranks of the update, some sums per address."""

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.sums: dict[str, Tensor] = {}

    def add(self, address: str, *sums: Tensor) -> None:
        """Adds numbers, each (), to the sums of `address`, in float64 on the device of the last one."""
        found = torch.stack([torch.as_tensor(value, device=sums[-1].device).double() for value in sums])
        self.sums[address] = self.sums.get(address, 0) + found

    @staticmethod
    def summary(values: Values) -> Values:
        """The mean over layers, by kind of branch."""
        return mean_by(kind, values)


def over_ranks(found: dict[str, Tensor], operation: Any = torch.distributed.ReduceOp.SUM) -> dict[str, Any]:
    """Tensors of one shape by address, as numbers over all ranks, which all call it: their sums, or by `operation`."""
    if not found:
        return {}
    stacked = torch.stack(list(found.values()))
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(stacked, operation)
    return dict(zip(found, stacked.tolist(), strict=True))


def kind(address: str) -> str:
    """An address without its layer: "decoder.18.ffn" -> "decoder.ffn"."""
    return ".".join(word for word in address.split(".") if not word.isdigit())


def mean_by(name: Callable[[str], str], values: Values) -> Values:
    """Name -> mean of the values whose address has that name."""
    found: dict[str, list[float]] = {}
    for address, value in values.items():
        found.setdefault(name(address), []).append(value)
    return {key: sum(numbers) / len(numbers) for key, numbers in found.items()}
