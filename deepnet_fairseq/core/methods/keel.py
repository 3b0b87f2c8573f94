"""Keel: y = LN(S x + dropout(f(LN(x)))), S branches in the stack: Post-LN without vanishing gradients.

Chen and Wei 2026, "Post-LayerNorm Is Back: Stable, ExpressivE, and Deep" (arXiv:2601.19895), for decoder language
models of up to 1,024 branches; no official code. Its exceptions, here of every stack:
    first branch         x + attn(LN(x))             the embedding goes on as it is
    first feed-forward   LN(x + ffn(LN(x)))
Ordinary initialisation, no LayerNorm at the end but the last branch's. The paper's norms have a gain alone, ours also a
bias, as all our LayerNorms. (Of DeepNorm it builds a variant whose beta is sqrt(2) wider than DeepNet's.)
S x is at most S sqrt(C) times the gain, and fp16 ends at 65504: --bf16 for more than 2,895 branches of width 512.
Ours: encoders, and decoders with cross-attention, S = 3M, where the cross-attention of the first layer is
LN(x + attn(LN(x))), as the feed-forward branch behind it.
"""

from torch import nn

from ..slots import ConstantShortcut
from .base import Method, register


@register("keel")
class Keel(Method):
    """A LayerNorm on the input of every branch, and another behind every residual sum but the first of a stack."""

    title = "Keel"
    equation = "LN(S x + f(LN(x))), S branches"
    paper = "Chen and Wei 2026"

    def norm_place(self, site):
        return "none" if site.layer == 1 and site.sublayer == "self_attn" else "post"

    def before(self, site):
        return nn.LayerNorm(site.dim)

    def residual(self, site):
        if site.layer == 1:
            return None  # x + f: the paper's exceptions have no S
        return ConstantShortcut(float(self.branches(site.stack)))

    def coefficients(self, stack):
        return {"alpha": float(self.branches(stack))}

    def constants(self, stack):
        return self.coefficients(stack)
