"""Method that fills every slot with parameters, so that tests cover each slot whether or not a method uses it."""

import torch
from torch import nn

from deepnet_fairseq.core.methods import Method


class Bias(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.full((dim,), 0.1))

    def forward(self, x):
        return x[..., : len(self.bias)] + self.bias


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.tensor(0.5))

    def forward(self, x, f):
        return x + self.gate * torch.cat([f, -f], -1)


class Heads(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norms = nn.ModuleDict({role: nn.LayerNorm(dim) for role in "qkv"})

    def forward(self, x, role):
        return self.norms[role](x)


class Wider(Bias):
    def forward(self, x):
        x = super().forward(x)
        return torch.cat([x, -x], -1)


class Entry(nn.Module):
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
        return y + self.share * sum(history) / len(history)


class EverySlot(Method):
    equation, paper = "a test", "none"
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
