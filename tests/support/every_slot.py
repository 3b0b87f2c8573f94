"""Method that fills every slot with parameters, so that tests cover each slot whether or not a method uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from deepnet_fairseq.core.methods import METHODS, Method, register


class Bias(nn.Module):
    """Adds one learned number to each feature; of a wider stream it returns the first features only."""

    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.full((dim,), 0.1))

    def forward(self, x):
        return x[..., : len(self.bias)] + self.bias


class Gate(nn.Module):
    """Adds a learned share of the branch to one half of a stream of double width, and subtracts it from the other."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.tensor(0.5))

    def forward(self, x, f):
        return x + self.gate * torch.cat([f, -f], -1)


class Heads(nn.Module):
    """LayerNorms of queries, keys and values, which see the features of one head."""

    def __init__(self, dim):
        super().__init__()
        self.norms = nn.ModuleDict({role: nn.LayerNorm(dim) for role in "qkv"})

    def forward(self, x, role):
        return self.norms[role](x)


class Wider(Bias):
    """Beginning of a stream of double width."""

    def forward(self, x):
        x = super().forward(x)
        return torch.cat([x, -x], -1)


class Entry(nn.Module):
    """Adds a learned share of the layer's input."""

    def __init__(self):
        super().__init__()
        self.share = nn.Parameter(torch.tensor(0.5))

    def forward(self, x, entry):
        return x + self.share * entry


class Mean(nn.Module):
    """Mixer of layers' outputs: the next layer reads a learned share of the mean of all outputs so far."""

    def __init__(self):
        super().__init__()
        self.share = nn.Parameter(torch.tensor(0.5))

    def forward(self, y, history):
        history.append(y)
        mean = sum(history) / len(history)
        return y + self.share * mean


class EverySlot(Method):
    equation = "a test"
    paper = "none"
    norm = "pre"

    def norm_place(self, site):
        return "post" if site.layer == 1 or site.sublayer == "self_attn" else "pre"

    def stream_width(self, stack, dim):
        return 2 * dim

    def before(self, site):
        return Bias(site.dim)

    def hidden(self, site, dim):
        return Bias(dim)

    def heads(self, site, dim):
        return Heads(dim)

    def bypass(self, site):
        return Entry()

    def inner(self, site, dim):
        return nn.LayerNorm(dim)

    def outer(self, site):
        return Bias(site.dim)

    def residual(self, site):
        return Gate()

    def beginning(self, stack, dim):
        return Wider(dim)

    def mixer(self, stack, dim):
        return Mean()

    def ending(self, stack, dim):
        return Bias(dim)


@contextmanager
def every_slot_registered() -> Iterator[str]:
    """Register the method as `every_slot`, its name, inside the context."""
    register("every_slot")(EverySlot)
    try:
        yield "every_slot"
    finally:
        del METHODS["every_slot"]
