"""Theorems 4.2 and 4.3 of DeepNet: the most that a change of the branches' parameters can change a model's output.

Wang et al. 2022, section 4. With ||theta_i* - theta_i|| the change of branch i, up to a constant,

    4.2  one stack        ||dF|| <= sum_i sqrt(v_i^2 + w_i^2) / alpha_i  ||theta_i* - theta_i||
    4.3  encoder-decoder  ||dF|| <= sum_{cross-attentions} v w / alpha  *  (4.2 of the encoder)  +  (4.2 of the decoder)

Under SGD the change of a branch is at most lr sqrt(v^2 + w^2) / alpha times the gradient at the output, and DeepNorm's
alpha and beta make both terms of 4.3 equal to lr at any depth; Post-LN's grow as N M and M.
"""

from __future__ import annotations

from ..transformer.slots import Site
from .magnitudes import Branch

Changes = dict[Site, float]  # ||theta_i* - theta_i|| of each branch, sqrt(dv^2 + dw^2)


def stack_bound(branches: list[Branch], changes: Changes, stack: str) -> float:
    """Theorem 4.2 for the branches of one stack, "encoder" or "decoder": of a language model, of all."""
    return sum(b.magnitude / b.alpha * changes[b.site] for b in branches if b.site.stack == stack)


def model_bound(branches: list[Branch], changes: Changes) -> float:
    """Theorem 4.3 for all branches of an encoder-decoder."""
    encoder, decoder = (stack_bound(branches, changes, stack) for stack in ("encoder", "decoder"))
    return memory_factor(branches) * encoder + decoder


def memory_factor(branches: list[Branch]) -> float:
    """What 4.3 multiplies a change of the encoder's output with: v w / alpha summed over the cross-attentions."""
    return sum(b.v * b.w / b.alpha for b in branches if b.site.sublayer == "encoder_attn")
