"""Run probes through the updates of a training, independently of the trainer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .base import FixedBatch, Probe, Values
from .model_update import token_masks


class Session:
    """Session of probes over the updates of one run.

    model: the bare model, without DDP's wrapper. Calls come in the order begin, (forward passes), gradients, values;
    without the last two the update is dropped, as after an overflow. Inner hooks live for the length of a forward pass
    only: the passes that activation checkpointing repeats, and those of validation, find none.
    """

    def __init__(self, model: nn.Module, probes: list[type[Probe]]):
        self.model = model
        self.probe_classes = probes
        self.fixed_batch: FixedBatch | None = None  # set before the first update if a probe needs it
        self.watching: list[Probe] = []  # probes of the update under observation, if there is one
        self.dummy = False  # whether the next forward pass belongs to a dummy batch, which only keeps a rank busy
        self._outer: list[RemovableHandle] = []
        self._inner: list[RemovableHandle] = []

    def begin(self) -> None:
        """Begin a probed update: the weights are theta_i, and the forward passes of update i + 1 come next."""
        self.end()
        self.watching = [probe(self.model) for probe in self.probe_classes]
        for probe in self.watching:
            probe.begin(self.fixed_batch)
        self._outer = [
            self.model.register_forward_pre_hook(self._enter, with_kwargs=True),
            self.model.register_forward_hook(self._leave, always_call=True),
        ]

    def gradients(self, scale: float | Tensor) -> None:
        """Show the accumulated gradients to the probes; times `scale` they are those of the mean loss."""
        for probe in self.watching:
            probe.gradients(scale)

    def values(self) -> dict[str, Values]:
        """Return probe -> address -> value; every rank must call this at the same time."""
        return {probe.name: probe.values() for probe in self.watching}

    def summary(self, values: dict[str, Values]) -> Values:
        """Return the entries of fairseq's log, "probe/address" -> value."""
        entries: Values = {}
        for probe in self.watching:
            for address, value in probe.summary(values[probe.name]).items():
                entries[f"{probe.name}/{address}"] = value
        return entries

    def end(self) -> None:
        """Remove all hooks; the model is as it was."""
        for handle in self._outer + self._inner:
            handle.remove()
        self._outer = []
        self._inner = []
        self.watching = []

    def _enter(self, model: nn.Module, inputs: tuple, kwargs: dict) -> None:
        masks = token_masks(model, *inputs, **kwargs)
        if self.dummy:
            masks = {stack: torch.zeros_like(mask) for stack, mask in masks.items()}

        handles: list[RemovableHandle] = []
        with torch.no_grad():
            for probe in self.watching:
                handles += probe.hooks(masks)
        self._inner = handles

    def _leave(self, model: nn.Module, inputs: tuple, output: Any) -> None:
        for handle in self._inner:
            handle.remove()
        self._inner = []
