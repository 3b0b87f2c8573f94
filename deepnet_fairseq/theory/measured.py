"""One SGD step on a built model: how far each branch moves, and how far the model's output moves with it.

The loss is the mean cross-entropy over a batch of random tokens with Zipf's frequencies; no data are needed. The
parameters of the theorems move: the value and output matrices of every attention, fc1 and fc2. Then, to compare, all:
LayerNorm's gains and biases, which no theorem counts and no alpha divides, add up over the layers. No dropout. All is
computed in float64, so that a step can be small enough to be linear and still be seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .bounds import Changes
from .magnitudes import largest_gain, matrices

SENTENCES, LENGTH = 8, 32

Gradients = dict[Tensor, Tensor]


@dataclass(frozen=True)
class Batch:
    """Token indices, each (B, T); `previous` is `target` moved on by one behind an eos."""

    source: Tensor
    previous: Tensor
    target: Tensor


@dataclass(frozen=True)
class Step:
    """What one step of SGD changes.

    changes: ||theta_i* - theta_i|| of each branch; encoder, model: ||dF|| of the encoder's output and of the decoder's
    features, RMS over the width, averaged over tokens; all_moved: the latter if every parameter moves.
    """

    changes: Changes
    encoder: float
    model: float
    all_moved: float


def zipf_batch(dictionary: Dictionary, seed: int) -> Batch:
    """Independent symbols, the r-th of the dictionary with probability proportional to 1/r; 8 sentences of 32."""
    generator = torch.Generator().manual_seed(seed)
    frequencies = 1 / torch.arange(1, len(dictionary) - dictionary.nspecial + 1).double()
    drawn = torch.multinomial(frequencies, 2 * SENTENCES * LENGTH, replacement=True, generator=generator)
    source, target = (drawn + dictionary.nspecial).view(2, SENTENCES, LENGTH)
    previous = target.roll(1, dims=1)
    previous[:, 0] = dictionary.eos()
    return Batch(source, previous, target)


def sgd_step(model: nn.Module, batch: Batch, lr: float) -> Step:
    """The effect of theta* = theta - lr dL/dtheta on a float64 encoder-decoder in evaluation mode, left as it was.

    L: mean cross-entropy per target token, in nats.
    """
    memory, features = _outputs(model, batch)
    loss = cross_entropy(model.decoder.output_layer(features).flatten(0, 1), batch.target.flatten())
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients: Gradients = dict(zip(parameters, torch.autograd.grad(loss, parameters), strict=True))
    pairs = {site: (first.weight, last.weight) for site, first, last in matrices(model)}
    changes = {site: lr * math.hypot(*(largest_gain(gradients[w]) for w in pair)) for site, pair in pairs.items()}
    of_theorem = {weight: gradients[weight] for pair in pairs.values() for weight in pair}
    moved_memory, moved_features = _outputs_after(model, batch, of_theorem, lr)
    _, all_moved = _outputs_after(model, batch, gradients, lr)
    moved = distance(memory, moved_memory), distance(features, moved_features), distance(features, all_moved)
    return Step(changes, *moved)


@torch.no_grad()
def _outputs_after(model: nn.Module, batch: Batch, gradients: Gradients, lr: float) -> tuple[Tensor, Tensor]:
    before = {parameter: parameter.clone() for parameter in gradients}
    try:
        for parameter, gradient in gradients.items():
            parameter.sub_(gradient, alpha=lr)
        return _outputs(model, batch)
    finally:
        for parameter, value in before.items():
            parameter.copy_(value)


def _outputs(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Output of the encoder (S, B, C), features of the decoder (B, T, C)."""
    memory = model.encoder(batch.source)
    features, _ = model.decoder(batch.previous, memory, features_only=True)
    return memory["encoder_out"][0], features


def distance(x: Tensor, y: Tensor) -> float:
    """||x - y|| / sqrt(C) of two tensors (.., C), averaged over tokens."""
    return (x - y).square().mean(-1).sqrt().mean().item()
