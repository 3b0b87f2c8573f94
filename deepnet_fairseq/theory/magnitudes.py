"""From matrices to the scalars of DeepNet's theory: v, w and alpha of every residual branch of a built model.

Wang et al. 2022, section 4.2 and appendix A: hidden dimension 1, a branch is v w x (q and k do not change magnitudes,
Lemma 4.1; ReLU, biases and LayerNorm's gains are left out), Xavier init is v = w = 1. The dictionary used here:

    size of a vector    its RMS, ||x|| / sqrt(d), which a LayerNorm sets to 1
    v, w                RMS gain of value_proj or fc1, and of out_proj or fc2, on an isotropic input, in units of a
                        Xavier draw's: E ||Wx||^2 = ||W||_F^2 for unit x, so it is the RMS of the entries over Xavier's
                        std; a method's gain on a Xavier profile is the expected value
    dv, dw              the largest RMS gain of the change, spectral norm in place of Frobenius' over sqrt(d), in the
                        same units: a gradient is made of the very inputs it will meet, an average would be no bound
    alpha               factor of the shortcut over that of the branch; a vector counts by its RMS
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..initialisation import xavier_std
from ..transformer.slots import Scale, Site

FIRST, LAST = ("v", "fc1"), ("out", "fc2")  # roles of v and of w


@dataclass(frozen=True)
class Branch:
    """One theta_i = (v, w) of the theorems, in units of a Xavier draw's gain, and the alpha it is merged with."""

    site: Site
    v: float
    w: float
    alpha: float

    @property
    def magnitude(self) -> float:
        """||theta_i|| = sqrt(v^2 + w^2)."""
        return math.hypot(self.v, self.w)


def matrices(model: nn.Module) -> Iterator[tuple[Site, nn.Linear, nn.Linear]]:
    """Every branch with the matrices of v (value or fc1) and of w (out or fc2), in forward order, the encoder first."""
    for stack in model.stacks().values():
        for layer in stack.layers:
            first = {weight.site: weight.linear for weight in layer.weights() if weight.role in FIRST}
            last = {weight.site: weight.linear for weight in layer.weights() if weight.role in LAST}
            yield from ((site, first[site], last[site]) for site in first)


@torch.no_grad()
def branches(model: nn.Module) -> list[Branch]:
    """v, w and alpha of every branch as the model stands, in the order of `matrices`."""
    found = []
    for site, first, last in matrices(model):
        shortcut, branch = model.stacks()[site.stack].layers[site.layer - 1].residual[site.sublayer].scales()
        found.append(Branch(site, gain(first), gain(last), _rms(shortcut) / _rms(branch)))
    return found


def gain(linear: nn.Linear) -> float:
    """RMS gain of the matrix on an isotropic input, over that of a Xavier draw."""
    return _rms(linear.weight) / xavier_std(linear)


def largest_gain(change: Tensor) -> float:
    """Largest RMS gain of a change (d_out, d_in) of a matrix, over the isotropic gain of a Xavier draw."""
    d_out, d_in = change.shape
    xavier = math.sqrt(2 * d_in / (d_in + d_out))
    return torch.linalg.matrix_norm(change, 2).item() * math.sqrt(d_in / d_out) / xavier


def _rms(values: Scale) -> float:
    return torch.as_tensor(values).double().square().mean().sqrt().item()
