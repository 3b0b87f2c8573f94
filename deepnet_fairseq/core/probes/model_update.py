"""Accumulated model update: how far the model's output on one fixed batch has moved since the first update.

It is ||F(x, theta_i) - F(x, theta_0)||, F(x, theta_i) being the output on the batch x with the weights after i updates.
An address names a part of the model (base.py).
"""

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

    Addresses: "encoder" and "decoder", for the output of the stack; the decoder's is that in front of the projection to
    the vocabulary. Outputs are computed in evaluation mode, so without dropout. Where a LayerNorm of unit gain ends the
    stack, the value is at most 2 sqrt(C), and about sqrt(2 C) for two uncorrelated outputs.
    """

    needs_fixed_batch = True

    def begin(self, fixed_batch: FixedBatch | None) -> None:
        assert fixed_batch is not None  # because needs_fixed_batch is set
        outputs_now = outputs(self.model, fixed_batch.net_input)
        for stack, output in outputs_now.items():
            distances = (output - fixed_batch.reference[stack]).norm(dim=-1)
            self.measured[stack] = distances.mean().item()


def outputs(model: nn.Module, net_input: dict[str, Any]) -> dict[str, Tensor]:
    """Return name of a stack -> its output at the tokens of a batch, (tokens, C), float32, without padding.

    model: a DeepModel; net_input: the entry of that name in a fairseq sample, keyword arguments of the model's forward.
    The model's mode and the random generators are left as they were.
    """
    cuda_devices = [parameter.device for parameter in model.parameters() if parameter.is_cuda]
    # a method may draw random numbers in evaluation mode too
    with in_mode(model, training=False), torch.no_grad(), fork_rng(cuda_devices[:1]):
        features = model.features(**net_input)
    masks = token_masks(model, **net_input)
    return {name: output[masks[name]].float() for name, output in features.items()}


def token_masks(model: nn.Module, *inputs: Any, **net_input: Any) -> dict[str, Tensor]:
    """Return name of a stack -> mask (B, T) of the tokens that it reads, True at tokens, False at padding.

    model: a DeepModel; inputs, net_input: positional and keyword arguments of its `forward`.
    """
    masks = {}
    for name, tokens in model.tokens(*inputs, **net_input).items():
        masks[name] = tokens.ne(model.stacks()[name].padding_idx)
    return masks
