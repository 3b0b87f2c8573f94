"""NormFormer: Pre-LN with a LayerNorm behind self-attention, one behind the activation, and a factor on each head.

Shleifer, Weston, Ott 2021, "NormFormer: Improved Transformer Pretraining with Extra Normalization":
    self-attention  y = x + D(LN(W_out concat(c_i head_i)))            a number c_i for each head, D dropout
    ffn             y = r o x + D(fc2(LN(D'(act(fc1(LN(x)))))))        vector r: --normformer-scale-residual only,
                                                                       D' activation dropout
The factors c and r and the gains of the LayerNorms start at 1. Cross-attention is plain Pre-LN.
fairseq's code multiplies chunks of the output of W_out by c_i, which is another function than the paper's (its author
names speed as the reason); `--normformer-head-scale fairseq` computes that. fairseq has the options in the decoder
layer only, and flags for language models only; the paper has no encoder-decoder. Here they act in both stacks.
"""

import torch
from torch import nn

from ..slots import LearnedShortcut
from .base import Method, Option, register


class HeadScale(nn.Module):
    """Multiply chunk i of the features, C / h wide, by c_i: x (B, T, C) -> same.

    num_heads: h. The parameter c (h,) is 1 at first.
    """

    def __init__(self, num_heads: int):
        super().__init__()
        self.c = nn.Parameter(torch.ones(num_heads))

    def forward(self, x):
        chunks = x.unflatten(-1, (len(self.c), -1))  # (B, T, h, C / h)
        return (chunks * self.c.unsqueeze(-1)).flatten(-2)


@register("normformer")
class NormFormer(Method):
    """Pre-LN with factors on heads and further LayerNorms, and factors on a shortcut, each switched by an option."""

    title = "NormFormer"
    equation = "x + LN(f(LN(x))), heads scaled, LN behind the activation"
    paper = "Shleifer et al. 2021"
    norm = "pre"
    options = {
        "head_scale": Option(
            "paper",
            "factors on heads: before W_out (paper), on its output (fairseq), or none",
            ("paper", "fairseq", "none"),
        ),
        "head_scale_scope": Option("self_attn", "the attentions that have factors on heads", ("self_attn", "all")),
        "no_attention_norm": Option(False, "no LayerNorm behind self-attention"),
        "no_ffn_norm": Option(False, "no LayerNorm behind the activation"),
        "scale_residual": Option(False, "factors r on the shortcut of the feed-forward branch"),
    }

    def scales_heads(self, site, placement: str) -> bool:
        """Tell whether the branch has a HeadScale at `placement`, "paper" (before W_out) or "fairseq" (behind it)."""
        scaled_branches = ["self_attn"]
        if self.head_scale_scope == "all":
            scaled_branches.append("encoder_attn")
        return site.sublayer in scaled_branches and self.head_scale == placement

    def inner(self, site, dim):
        if site.sublayer == "ffn":
            return None if self.no_ffn_norm else nn.LayerNorm(dim)
        return HeadScale(site.num_heads) if self.scales_heads(site, "paper") else None

    def outer(self, site):
        modules: list[nn.Module] = []
        if self.scales_heads(site, "fairseq"):
            modules.append(HeadScale(site.num_heads))
        if site.sublayer == "self_attn" and not self.no_attention_norm:
            modules.append(nn.LayerNorm(site.dim))
        return nn.Sequential(*modules) if modules else None

    def residual(self, site):
        return LearnedShortcut(site.dim) if self.scale_residual and site.sublayer == "ffn" else None
