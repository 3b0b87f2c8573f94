"""Base class and registry of probes, which measure something inside the model in some updates of a training.

A stack is the encoder or the decoder. An address names a part of the model: "encoder" (a stack), "decoder.18" (a layer,
counted from 1) or "decoder.18.ffn" (a residual branch of it). Shapes: B sentences, T tokens, C width in features. A
rank is one of the processes that train together. A new probe is a subclass under @register_probe, imported in
core/probes/__init__.py.
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

    net_input: the entry of that name in a fairseq sample, the keyword arguments of the model's forward; reference:
    name of a stack -> its output (tokens, C) before the model's first update, as model_update.outputs returns it.
    """

    net_input: dict[str, Any]
    reference: dict[str, Tensor]


HeldBatch = FixedBatch  # its name until 0.1; gone with the next release


class Probe:
    """Measurement of one quantity in one update; each probed update gets a new instance.

    A session.Session calls `begin` once, `hooks` before each forward pass, and after all backward passes `gradients`
    and `values`, once each. A subclass overrides those of them that it needs, and says in its docstring what its values
    are, their unit, and which paper plots them.

    model: a DeepModel, without DDP's wrapper; measured: what `values` returns unless a subclass overrides it.
    """

    name: ClassVar[str]
    needs_fixed_batch: ClassVar[bool] = False  # whether `begin` needs a FixedBatch

    def __init__(self, model: nn.Module):
        self.model = model
        self.measured: Values = {}

    def begin(self, fixed_batch: FixedBatch | None) -> None:
        """Prepare the measurement before the update's first forward pass.

        fixed_batch: None in a run in which no probe has needs_fixed_batch.
        """

    def hooks(self, masks: dict[str, Tensor]) -> Iterator:
        """Attach hooks for one forward pass and yield their handles, by which the caller removes them.

        masks: name of a stack -> (B, T), True at tokens, False at padding. All are False for a dummy batch, which
        fairseq gives to a rank that has run out of data, and whose tokens do not count.
        """
        yield from ()

    def gradients(self, scale: float | Tensor) -> None:
        """Read the gradients of the model's parameters when all forward and backward passes are done.

        scale: factor, a number or a tensor (); gradients times this factor are those of the mean loss per token.
        """

    def values(self) -> Values:
        """Return the measured values, which are the same on every rank.

        Every rank must call this at the same time, because a probe may combine what the ranks have measured.
        """
        return self.measured

    @staticmethod
    def summary(values: Values) -> Values:
        """Reduce the result of `values` to the few values that go to fairseq's log; by default all of them do."""
        return values


def register_probe(name: str) -> Callable[[type[Probe]], type[Probe]]:
    """Class decorator that offers a Probe as `--deepnet-probe NAME`; it replaces another one of that name."""

    def add(cls: type[Probe]) -> type[Probe]:
        cls.name = name
        PROBES[name] = cls
        return cls

    return add


def get_probes(names: str | None) -> list[type[Probe]]:
    """Return the classes that `names` asks for, the value of --deepnet-probe.

    names: probes separated by commas, "all" for all, None (no flag) for none. Raises a UserError for an unknown name,
    and for a text without names.
    """
    if names is None:
        return []
    if names == "all":
        return list(PROBES.values())
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in PROBES]
    if unknown or not wanted:
        raise UserError(f"--deepnet-probe {names}", f"choose some of {','.join(PROBES)}, or all")
    return [PROBES[name] for name in dict.fromkeys(wanted)]  # a name that is given twice counts once


class TokenSums(Probe):
    """Base of probes that add up a few numbers for each address, over the tokens of all forward passes of an update.

    sums: address -> the sums on this rank, a tensor (numbers,).
    """

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.sums: dict[str, Tensor] = {}

    def add(self, address: str, *numbers: Any) -> None:
        """Add numbers to the sums of `address`, each to its own.

        numbers: Python numbers or tensors (); the last must be a tensor, and the sums stay on its device, so that the
        CPU need not wait for a GPU. They are float64, for sums over millions of tokens.
        """
        device = numbers[-1].device
        new = torch.stack([torch.as_tensor(number, device=device).double() for number in numbers])
        before = self.sums.get(address, 0)
        self.sums[address] = before + new

    @staticmethod
    def summary(values: Values) -> Values:
        """Return the means over layers: "decoder.ffn" of "decoder.1.ffn", "decoder.2.ffn" and so on."""
        return mean_by(without_layer, values)


def over_ranks(tensors: dict[str, Tensor], operation: Any = torch.distributed.ReduceOp.SUM) -> dict[str, Any]:
    """Return address -> sum of a tensor over all ranks, as a number for a tensor () and a list for a tensor (n,).

    tensors: address -> tensor of this rank; all have one shape, and all ranks the same addresses in the same order.
    operation: what to compute in place of the sum, a torch.distributed.ReduceOp.
    """
    if not tensors:  # torch cannot stack none
        return {}
    stacked = torch.stack(list(tensors.values()))  # so that one all_reduce, and one copy to the CPU, do for all
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(stacked, operation)
    return dict(zip(tensors, stacked.tolist(), strict=True))


def without_layer(address: str) -> str:
    """Drop the layer, and any other number, from an address: "decoder.18.ffn" -> "decoder.ffn"."""
    return ".".join(word for word in address.split(".") if not word.isdigit())


def mean_by(group_of: Callable[[str], str], values: Values) -> Values:
    """Return group -> mean of its values; group_of: maps an address to the name of the group to which it belongs."""
    groups: dict[str, list[float]] = {}
    for address, value in values.items():
        group = groups.setdefault(group_of(address), [])
        group.append(value)
    return {name: sum(numbers) / len(numbers) for name, numbers in groups.items()}
