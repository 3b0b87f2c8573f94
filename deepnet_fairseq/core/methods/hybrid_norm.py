"""HybridNorm: z = LN(x + dropout(W_out attn(n(q), n(k), n(v)))), y = z + dropout(ffn(z)), n a LayerNorm by head.

Zhuo et al. 2025, "HybridNorm: Towards Stable and Efficient Transformer Training via Hybrid Normalization"
(arXiv:2503.04598), for decoder language models; code BryceZhuo/HybridNorm. n normalises the d features of a head, with
one gain for all heads, but another for each of q, k and v. There is no LayerNorm on the input of attention, and one at
the end of a stack. The initialisation is Megatron's: out_proj and fc2 are drawn 1/sqrt(2M) as wide.
`--hybrid-norm-star` is the paper's HybridNorm*: the first layer of a stack is Pre-LN with n. The paper's norms have a
gain alone, ours also a bias, as all our LayerNorms.
Ours: encoders; n in cross-attention too; with cross-attention the LN that gives z follows the last attention of a layer
alone; 1/sqrt(branches of the stack) for 1/sqrt(2M).
"""

from torch import nn

from ..slots import ByRole
from .base import Method, Option, register


@register("hybrid_norm")
class HybridNorm(Method):
    """LayerNorms on q, k and v by head, one behind a layer's last attention and its shortcut, one at a stack's end."""

    title = "HybridNorm"
    equation = "z + ffn(z), z = LN(x + attn), LN on its q, k, v by head"
    paper = "Zhuo et al. 2025"
    options = {"star": Option(False, "HybridNorm*: the first layer of a stack is Pre-LN")}

    def norm_place(self, site):
        if self.star and site.layer == 1:
            return "pre"
        last_attention = self.sublayers(site.stack)[-2]  # the last branch is feed-forward
        return "post" if site.sublayer == last_attention else "none"

    def closing_norm(self, stack):
        return True

    def heads(self, site, dim):
        return ByRole({role: nn.LayerNorm(dim) for role in "qkv"})

    def gain(self, site, role):
        return self.coefficients(site.stack)["gain"] if role in ("out", "fc2") else 1.0

    def coefficients(self, stack):
        return {"gain": self.branches(stack) ** -0.5}
