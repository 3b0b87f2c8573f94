"""Method that fills every slot with parameters, so that tests cover each slot whether or not a method uses it.

Its residual stream has double width, 2C; the second half begins as the first with the other sign. The slots and their
shapes are those of deepnet_fairseq/core/methods/base.py. Shares of 0.5 and biases of 0.1 are no neutral values: the
scores change if a slot is not called.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from deepnet_fairseq.core.methods import METHODS, Method, register


class Bias(nn.Module):
    """Adds one learned number to each of `dim` features; of a wider stream it reads the first `dim` features only."""

    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.full((dim,), 0.1))

    def forward(self, x):
        return x[..., : len(self.bias)] + self.bias


class Gate(nn.Module):
    """Adds a learned share of the branch f to one half of the stream x, and subtracts it from the other."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.tensor(0.5))

    def forward(self, x, f):
        return x + self.gate * torch.cat([f, -f], -1)


class NormsOfHeads(nn.Module):
    """LayerNorms of queries, keys and values, each over the `dim` features of one head."""

    def __init__(self, dim):
        super().__init__()
        self.norms = nn.ModuleDict({role: nn.LayerNorm(dim) for role in "qkv"})

    def forward(self, x, role):
        return self.norms[role](x)


class DoubledBeginning(Bias):
    """Makes a stream of double width of an embedding x: x + bias, and the same with the other sign."""

    def forward(self, x):
        x = super().forward(x)
        return torch.cat([x, -x], -1)


class ShareOfEntry(nn.Module):
    """Adds a learned share of `entry`, the layer's input, to the shortcut x of the layer's last branch."""

    def __init__(self):
        super().__init__()
        self.share = nn.Parameter(torch.tensor(0.5))

    def forward(self, x, entry):
        return x + self.share * entry


class ShareOfMean(nn.Module):
    """Mixer: the next layer reads the last output y and a learned share of the mean of all outputs so far."""

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
        """Mix both places: Post-LN in the first layer and in all self-attentions, Pre-LN elsewhere."""
        if site.layer == 1 or site.sublayer == "self_attn":
            return "post"
        return "pre"

    def stream_width(self, stack, dim):
        return 2 * dim

    def before(self, site):
        return Bias(site.dim)

    def hidden(self, site, dim):
        return Bias(dim)

    def heads(self, site, dim):
        return NormsOfHeads(dim)

    def bypass(self, site):
        return ShareOfEntry()

    def inner(self, site, dim):
        return nn.LayerNorm(dim)

    def outer(self, site):
        return Bias(site.dim)

    def residual(self, site):
        return Gate()

    def beginning(self, stack, dim):
        return DoubledBeginning(dim)

    def mixer(self, stack, dim):
        return ShareOfMean()

    def ending(self, stack, dim):
        return Bias(dim)


@contextmanager
def every_slot_registered() -> Iterator[str]:
    """Register the method for the block, and yield its name."""
    name = "every_slot"
    register(name)(EverySlot)
    try:
        yield name
    finally:
        del METHODS[name]
