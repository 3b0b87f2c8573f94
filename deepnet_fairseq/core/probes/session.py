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

    model: a DeepModel, without DDP's wrapper; probes: classes of which each probed update gets new instances.

    For each update that is to be probed call begin, run the forward and backward passes, and call gradients, values,
    summary and end. Without gradients and values the update is dropped, as after an overflow. Hooks inside the model
    exist during a forward pass only, so that layers that activation checkpointing repeats in the backward pass are not
    measured twice.
    """

    def __init__(self, model: nn.Module, probes: list[type[Probe]]):
        self.model = model
        self.probe_classes = probes
        self.fixed_batch: FixedBatch | None = None  # set before the first update if a probe needs it
        self.watching: list[Probe] = []  # probes of the present update, none if it is not probed
        self.dummy = False  # whether the next forward pass belongs to a dummy batch, which only keeps a rank busy
        self._model_hooks: list[RemovableHandle] = []  # two on the model, which attach and remove those inside
        self._inner_hooks: list[RemovableHandle] = []  # the probes' own, during a forward pass

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
        """Let the probes read the model's gradients; scale: factor that makes of them those of the mean loss."""
        for probe in self.watching:
            probe.gradients(scale)

    def values(self) -> dict[str, Values]:
        """Return name of a probe -> address -> value; every rank must call this at the same time."""
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
        """Forward pre-hook of the model: attach the probes' hooks."""
        masks = token_masks(model, *inputs, **kwargs)
        if self.dummy:
            masks = {stack: torch.zeros_like(mask) for stack, mask in masks.items()}

        handles: list[RemovableHandle] = []
        with torch.no_grad():
            for probe in self.watching:
                handles += probe.hooks(masks)
        self._inner_hooks = handles

    def _leave(self, model: nn.Module, inputs: tuple, output: Any) -> None:
        """Forward hook of the model, called after an error too: remove the probes' hooks."""
        for handle in self._inner_hooks:
            handle.remove()
        self._inner_hooks = []
