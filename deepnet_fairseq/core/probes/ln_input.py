"""Norm ||x|| of the input x of each LayerNorm in a stack, which multiplies gradients by about sqrt(d) / ||x||.

d is the number of features. An address names a part of the model (base.py).

Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture", Lemma 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from ..slots import SUBLAYER_OF_NORM
from .base import TokenSums, Values, over_ranks, register_probe


@register_probe("ln_input")
class LNInput(TokenSums):
    """||x|| of a token, an L2 norm over features, averaged over tokens (Wang et al. 2022, Figure 4b and 4c).

    The norm is sqrt(C) for features with mean 0 and variance 1. Addresses: "decoder.18.ffn" the LayerNorm of a branch,
    "decoder.layer_norm" or "decoder.18.inner" another one by its path in the stack. In the log: the mean over layers,
    as "decoder.ffn".
    """

    def hooks(self, masks: dict[str, Tensor]) -> Iterator:
        for name, stack in self.model.stacks().items():
            for path, norm in stack.named_modules():
                if not isinstance(norm, nn.LayerNorm):
                    continue
                words = _address_words(path)
                # those that a method puts on keys and values of cross-attention (slot `heads`) read the source's tokens
                reads_source = "encoder_attn" in words and words[-1] in ("k", "v")
                mask = masks["encoder"] if reads_source else masks[name]
                address = ".".join([name, *words])
                yield norm.register_forward_pre_hook(partial(self._add_norms, address, mask))

    @torch.no_grad()
    def _add_norms(self, address: str, mask: Tensor, module: nn.Module, inputs: tuple) -> None:
        """Forward pre-hook of a LayerNorm: add how many vectors x it normalises, and the sum of their norms ||x||.

        mask (B, T): True at the tokens that count; inputs: x alone, (B, T, C) or by head (B, T, h, d).
        """
        norms = inputs[0].detach()[mask].float().norm(dim=-1)
        self.add(address, norms.numel(), norms.sum())

    def values(self) -> Values:
        means = {}
        for address, (count, total) in over_ranks(self.sums).items():  # the numbers that _add_norms adds
            if count:  # 0 if no rank had a batch that counts
                means[address] = total / count
        return means


def _address_words(path: str) -> list[str]:
    """Turn a LayerNorm's path in its stack into the words of its address, without the stack.

    "layers.17.final_layer_norm" -> ["18", "ffn"], and "layer_norm" -> ["layer_norm"].
    """
    words = path.split(".")
    if words[0] != "layers":  # outside the layers the path is the address
        return words
    layer = int(words[1]) + 1
    branch_and_rest = [SUBLAYER_OF_NORM.get(word, word) for word in words[2:]]
    return [str(layer), *branch_and_rest]
