"""Theorems 4.2 and 4.3 of DeepNet: the most that a change of the branches' parameters can change a model's output.

Wang et al. 2022, section 4. With ||theta_i* - theta_i|| the change of branch i, up to a constant,

    4.2  one stack        ||dF|| <= sum_i sqrt(v_i^2 + w_i^2) / alpha_i  ||theta_i* - theta_i||
    4.3  encoder-decoder  ||dF|| <= sum_{cross-attentions} v w / alpha  *  (4.2 of the encoder)  +  (4.2 of the decoder)

Under SGD the change of a branch is at most lr sqrt(v^2 + w^2) / alpha times the gradient at the output, and DeepNorm's
alpha and beta make both terms of 4.3 equal to lr at any depth; Post-LN's grow as N M and M.

v, w and alpha are read off the matrices of a built model. The paper (appendix A) has hidden dimension 1: a branch is
v w x (q and k do not change magnitudes, Lemma 4.1; ReLU, biases and LayerNorm's gains are left out), Xavier init is
v = w = 1. The dictionary used here:

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
Changes = dict[Site, float]  # ||theta_i* - theta_i|| of each branch, sqrt(dv^2 + dw^2)


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
        v, w = (_rms(linear.weight) / xavier_std(linear) for linear in (first, last))
        found.append(Branch(site, v, w, _rms(shortcut) / _rms(branch)))
    return found


def largest_gain(change: Tensor) -> float:
    """Largest RMS gain of a change (d_out, d_in) of a matrix, over the isotropic gain of a Xavier draw."""
    d_out, d_in = change.shape
    xavier = math.sqrt(2 * d_in / (d_in + d_out))
    return torch.linalg.matrix_norm(change, 2).item() * math.sqrt(d_in / d_out) / xavier


def _rms(values: Scale) -> float:
    return torch.as_tensor(values).double().square().mean().sqrt().item()


def stack_bound(branches: list[Branch], changes: Changes, stack: str) -> float:
    """Theorem 4.2 for the branches of one stack, "encoder" or "decoder": of a language model, of all."""
    return sum(b.magnitude / b.alpha * changes[b.site] for b in branches if b.site.stack == stack)


def model_bound(branches: list[Branch], changes: Changes) -> float:
    """Theorem 4.3 for all branches of an encoder-decoder."""
    encoder, decoder = (stack_bound(branches, changes, stack) for stack in ("encoder", "decoder"))
    memory_factor = sum(b.v * b.w / b.alpha for b in branches if b.site.sublayer == "encoder_attn")
    return memory_factor * encoder + decoder
