"""Accumulated model update ||F(x, theta_i) - F(x, theta_0)|| on one batch that stays the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.random import fork_rng

from ..profile import in_mode
from .base import FixedBatch, Probe, register_probe


@register_probe("model_update")
class ModelUpdate(Probe):
    """The accumulated model update (Wang et al. 2022, Figure 4a): L2 norm over features, averaged over tokens.

    F: output of the decoder before the vocabulary ("decoder"), and of the encoder ("encoder"), in evaluation mode, so
    without dropout. It is at most 2 sqrt(C) where a LayerNorm of unit gain ends the stack, sqrt(2 C) for independent
    outputs.
    """

    needs_fixed_batch = True

    def begin(self, held: FixedBatch | None) -> None:
        assert held is not None  # needs_fixed_batch
        now = outputs(self.model, held.net_input)
        for name, output in now.items():
            distances = (output - held.reference[name]).norm(dim=-1)
            self.found[name] = distances.mean().item()


def outputs(model: nn.Module, net_input: dict) -> dict[str, Tensor]:
    """Return each stack's output at the tokens of a batch (net_input of a fairseq sample), (tokens, C), float32.

    The model's mode and the random generators are left as they were.
    """
    devices = [parameter.device for parameter in model.parameters() if parameter.is_cuda][:1]
    with in_mode(model, training=False), torch.no_grad(), fork_rng(devices):
        features = model.features(**net_input)
    masks = token_masks(model, **net_input)
    return {name: output[masks[name]].float() for name, output in features.items()}


def token_masks(model: nn.Module, *inputs: Any, **net_input: Any) -> dict[str, Tensor]:
    """Return a mask (B, T) by stack, True at tokens, False at padding, from the arguments of the model's `forward`."""
    masks = {}
    for name, tokens in model.tokens(*inputs, **net_input).items():
        masks[name] = tokens.ne(model.stacks()[name].padding_idx)
    return masks
