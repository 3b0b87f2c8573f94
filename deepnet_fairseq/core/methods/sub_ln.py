"""Sub-LN (Magneto): y = x + dropout(f(LN(x))) with a second LayerNorm in front of the last matrix of each branch.

Wang et al. 2022, "Foundation Transformers", Figure 2: out_proj(LN(heads)) in self-attention, fc2(LN(act(fc1))) in the
feed-forward branch, cross-attention with the LayerNorm on its input alone; a LayerNorm at the end of each stack.
Xavier-normal init; fc1, fc2, v, out times
    encoder  sqrt(ln(3M) ln(2N) / 3)      decoder  sqrt(ln(3M)), cross-attention not scaled      alone  sqrt(ln(2N))
and gain 1 on q, k. torchscale has the formula but scales torch's default init (biases too) instead of Xavier's, and
switches Sub-LN off silently under deepnorm=True.
"""

import math

from torch import nn

from .base import Method, register

SCALED = ("v", "out", "fc1", "fc2")  # roles of the matrices whose std is multiplied by gamma


@register("sub_ln")
class SubLN(Method):
    """Pre-LN with a LayerNorm in front of the last matrix of a branch, and the factor gamma on the std of matrices."""

    title = "Sub-LN"
    equation = "x + f(LN(x)), LN in front of f's last matrix"
    paper = "Wang et al. 2022 (Magneto)"
    norm = "pre"
    init_profiles = ("xavier_normal", "xavier_uniform")

    def inner(self, site, dim):
        return None if site.sublayer == "encoder_attn" else nn.LayerNorm(dim)

    def gain(self, site, role):
        scaled = role in SCALED and site.sublayer != "encoder_attn"
        return self.coefficients(site.stack)["gamma"] if scaled else 1.0

    def coefficients(self, stack):
        """Return gamma of `stack`; with 6 layers in each, 1.547 in the encoder and 1.700 in the decoder."""
        gamma_squared = math.log(self.branches(stack))  # 2N in the encoder, 3M in a decoder behind an encoder
        if stack == "encoder" and self.num_decoder_layers:
            gamma_squared *= math.log(self.branches("decoder")) / 3
        return {"gamma": math.sqrt(gamma_squared)}
