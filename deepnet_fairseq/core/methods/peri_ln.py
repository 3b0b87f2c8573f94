"""Peri-LN: y = x + dropout(LN(f(LN(x)))), a LayerNorm on the embedding and one at the end of each stack.

Kim et al. 2025, "Peri-LN: Revisiting Normalization Layer in the Transformer Architecture" (arXiv:2502.02732), for
decoder language models; Gemma 2 has the same layers, OLMo 2 those without the inner LayerNorm. Ordinary initialisation.
No official code.
Ours: encoders, and cross-attention, whose keys and values come from the encoder's last LayerNorm. The embedding's
LayerNorm stands behind its dropout, a branch's in front of its own; the paper has none.
"""

from torch import nn

from .base import Method, register


@register("peri_ln")
class PeriLN(Method):
    """Pre-LN with a further LayerNorm on the output of each branch and on the embedding."""

    title = "Peri-LN"
    equation = "x + LN(f(LN(x))), LN on the embedding"
    paper = "Kim et al. 2025"
    norm = "pre"

    def outer(self, site):
        return nn.LayerNorm(site.dim)

    def beginning(self, stack, dim):
        return nn.LayerNorm(dim)
