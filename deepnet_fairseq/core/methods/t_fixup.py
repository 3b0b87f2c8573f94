"""T-Fixup: y = x + dropout(f(x)), without LayerNorm and without warm-up; an initialisation scaled by the depth.

Huang et al. 2020, "Improving Transformer Optimization Through Better Initialization". Xavier-uniform with
    encoder  v, out, fc1, fc2 times 0.67 N^(-1/4)          embedding N(0, 1/C) times (9N)^(-1/4)
    decoder  v, out of both attentions, fc1, fc2 times (9M)^(-1/4)   embedding times (9M)^(-1/4)
A matrix shared by both embeddings takes the encoder's factor, once; a tied output projection is scaled with it,
positions are not. q, k keep fairseq's gain 1/sqrt2 as in the authors' code (the paper says 1). That code also
multiplies v by sqrt2, to undo the same gain, and keeps LayerNorms it never calls, which we do not build.
A stack alone takes the encoder's factors, because a decoder without cross-attention has the same branches; that is our
reading: paper and code have encoder and decoder only. The schedule, lr sqrt(P / (P + t)), is `--lr-scheduler t_fixup`
(plugin/optimisers/papers.py).
"""

import math

from .base import Method, register


@register("t_fixup")
class TFixup(Method):
    """Residual branches without LayerNorm, x + f(x), with factors on the std of their matrices and of embeddings."""

    title = "T-Fixup"
    equation = "x + f(x), init scaled by N^(-1/4)"
    paper = "Huang et al. 2020"
    norm = "none"
    init_profiles = ("xavier_uniform",)

    def gain(self, site, role):
        if role in ("q", "k"):
            return math.sqrt(0.5)  # fairseq's, whatever the depth
        return self.coefficients(site.stack)["gain"]

    def embedding_gain(self, stack):
        return (9 * self.depth(stack)) ** -0.25

    def coefficients(self, stack):
        """Return the gain of v, out, fc1 and fc2, and that of the embedding."""
        embedding = self.embedding_gain(stack)
        has_cross_attention = "encoder_attn" in self.sublayers(stack)
        gain = embedding if has_cross_attention else 0.67 * self.depth(stack) ** -0.25
        return {"gain": gain, "embedding": embedding}
