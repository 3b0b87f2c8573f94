"""LayerNorm Scaling: y = x + dropout(f(LN(x) / sqrt(l))), l the layer from 1: Pre-LN whose deep branches count less.

Sun et al. 2025, "The Curse of Depth in Large Language Models" (arXiv:2502.05795), for decoder language models. The
factor is a constant on the output of both LayerNorms of a layer, in the code (lmsdss/LayerNorm-Scaling) as in the
paper; the LayerNorm at the end has none. The code lowers the method's name and then asks for capitals, so that its own
branch is never reached. GPAS's authors start the learned gain of the LayerNorm at 1 / sqrt(l) instead, which trains
differently. The authors advise against combining it with an initialisation that shrinks with depth.
Ours: encoders too, each stack by its own l; in cross-attention the factor is on the query's input alone, because keys
and values come from the encoder's last LayerNorm.
"""

from torch import nn

from .base import Method, register


class Scale(nn.Module):
    """Product c x, x of any shape and dtype -> same; factor: c, a constant."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor

    def extra_repr(self):
        return f"factor={self.factor:.6g}"


@register("ln_scaling")
class LNScaling(Method):
    """Pre-LN with the factor 1 / sqrt(l) between the LayerNorm and the branch."""

    title = "LN-Scaling"
    equation = "x + f(LN(x) / sqrt(l))"
    paper = "Sun et al. 2025"
    norm = "pre"

    def before(self, site):
        return Scale(site.layer**-0.5)

    def coefficients(self, stack):
        """Return the factor of the last layer; that of the first is 1."""
        return {"last_layer": self.depth(stack) ** -0.5}

    def constants(self, stack):
        return self.coefficients(stack)  # a checkpoint of Pre-LN has the same parameters
