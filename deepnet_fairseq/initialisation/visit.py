"""One visit of every parameter; one that nobody claims is an error."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from fairseq.modules import LayerNorm, LearnedPositionalEmbedding
from torch import nn

from ..methods import Method
from ..transformer.layer import Layer
from ..transformer.slots import Weight
from .profiles import PROFILES

NORMS = (nn.LayerNorm, type(LayerNorm(1)))  # torch's, and apex's where it is installed


def branch_weights(model: nn.Module) -> Iterator[Weight]:
    """Every weight matrix inside a residual branch, in forward order of each stack."""
    for module in model.modules():
        if isinstance(module, Layer):
            yield from module.weights()


def weight_std(method: Method, profile: str, weight: Weight) -> float:
    """The std that the profile of that name (a key of PROFILES) and the method's gain give to one weight matrix."""
    return PROFILES[profile].weight_std(weight) * method.gain(weight.site, weight.role)


@torch.no_grad()
def initialize(model: nn.Module, method: Method, profile: str) -> None:
    """Draws all values of a freshly built model, from torch's global generator.

    Embeddings N(0, 1/C) with a zero padding row, output projection N(0, 1/C), each times the method's gain; matrices of
    a head N(0, 1/C) too; norms 1 and 0; branches by profile and method; modules in a method's slots keep the values
    they were constructed with. ValueError, naming them, for parameters that none of this is about.
    """
    visited: set[nn.Parameter] = set()
    base = PROFILES[profile]
    for weight in branch_weights(model):
        base.draw(weight.linear.weight, weight_std(method, profile, weight))
        if weight.linear.bias is not None:
            base.draw(weight.linear.bias, base.bias_std(weight))
        visited |= set(weight.linear.parameters())
    stacks = model.stacks()
    for stack in stacks.values():
        visited |= {parameter for slot in stack.slots() for parameter in slot.parameters()}
    for module in model.modules():
        if isinstance(module, NORMS) and module.weight not in visited:
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
            visited |= {module.weight, module.bias}
        elif isinstance(module, LearnedPositionalEmbedding):
            _embedding(module, 1.0, visited)
    for name, stack in stacks.items():
        _embedding(stack.embed_tokens, method.embedding_gain(name), visited)
    _projection(model.vocabulary_projection(), method.output_gain(), visited)
    for linear in model.head_linears():
        _projection(linear, 1.0, visited)
    unknown = [name for name, parameter in model.named_parameters() if parameter not in visited]
    if unknown:
        raise ValueError(f"no initialisation is defined for {', '.join(unknown)}")


def _embedding(module: nn.Embedding, gain: float, visited: set) -> None:
    if module.weight not in visited:  # shared matrices are drawn once
        nn.init.normal_(module.weight, 0.0, gain * module.embedding_dim**-0.5)
        nn.init.zeros_(module.weight[module.padding_idx])
        visited.add(module.weight)


def _projection(linear: nn.Linear, gain: float, visited: set) -> None:
    if linear.weight not in visited:
        nn.init.normal_(linear.weight, 0.0, gain * linear.in_features**-0.5)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    visited |= set(linear.parameters(recurse=False))
