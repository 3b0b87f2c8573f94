"""Run probes through the updates of a training, independently of the trainer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .base import FixedBatch, Probe, Values
from .model_update import token_masks


class Session:
    """What a training loop calls to run probes; one session lasts a whole run.

    model: a DeepModel, without DDP's wrapper; probes: classes, of which each probed update gets new instances.

    For each update that is to be probed call begin, run the forward and backward passes, and call gradients, values,
    summary and end. To drop the measurement, as after an overflow, call end alone. Hooks inside the model exist during
    a forward pass only, so that layers that activation checkpointing runs again in the backward pass are not measured
    twice.
    """

    def __init__(self, model: nn.Module, probes: list[type[Probe]]):
        self.model = model
        self.probe_classes = probes
        self.fixed_batch: FixedBatch | None = None  # set before the first update if a probe needs it
        self.watching: list[Probe] = []  # probes of the present update, none if it is not probed
        # whether the next forward pass is one of a dummy batch, which fairseq gives to a rank that has no data left
        self.dummy = False
        self._model_hooks: list[RemovableHandle] = []  # _enter and _leave, on the model itself
        self._inner_hooks: list[RemovableHandle] = []  # those that the probes attach for one forward pass

    def begin(self) -> None:
        """Begin a probed update, before its first forward pass."""
        self.end()
        self.watching = [probe(self.model) for probe in self.probe_classes]
        for probe in self.watching:
            probe.begin(self.fixed_batch)
        self._model_hooks = [
            self.model.register_forward_pre_hook(self._enter, with_kwargs=True),
            self.model.register_forward_hook(self._leave, always_call=True),
        ]

    def gradients(self, scale: float | Tensor) -> None:
        """Let the probes read the model's gradients, which times `scale` are those of the mean loss per token."""
        for probe in self.watching:
            probe.gradients(scale)

    def values(self) -> dict[str, Values]:
        """Return name of a probe -> address -> value; every rank must call this at the same time, as all_reduce."""
        return {probe.name: probe.values() for probe in self.watching}

    def summary(self, values: dict[str, Values]) -> Values:
        """Return the entries of fairseq's log, "probe/address" -> value; values: result of the method `values`."""
        entries: Values = {}
        for probe in self.watching:
            for address, value in probe.summary(values[probe.name]).items():
                entries[f"{probe.name}/{address}"] = value
        return entries

    def end(self) -> None:
        """End the probed update, if there is one, and remove all hooks; the model is as it was."""
        for handle in self._model_hooks + self._inner_hooks:
            handle.remove()
        self._model_hooks = []
        self._inner_hooks = []
        self.watching = []

    def _enter(self, model: nn.Module, inputs: tuple, kwargs: dict) -> None:
        """Forward pre-hook of the model, whose arguments are `inputs` and `kwargs`: attach the probes' hooks."""
        masks = token_masks(model, *inputs, **kwargs)
        if self.dummy:  # none of its tokens counts
            masks = {stack: torch.zeros_like(mask) for stack, mask in masks.items()}

        handles: list[RemovableHandle] = []
        with torch.no_grad():
            for probe in self.watching:
                handles += probe.hooks(masks)
        self._inner_hooks = handles

    def _leave(self, model: nn.Module, inputs: tuple, output: Any) -> None:
        """Forward hook of the model, called after an error in the pass too: remove the probes' hooks."""
        for handle in self._inner_hooks:
            handle.remove()
        self._inner_hooks = []
