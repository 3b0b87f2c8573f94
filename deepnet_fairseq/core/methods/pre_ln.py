"""Pre-LN: y = x + dropout(f(LN(x))), with one more LayerNorm at the end of each stack.

Wang et al. 2019, "Learning Deep Transformer Models for Machine Translation"; Xiong et al. 2020, "On Layer
Normalization in the Transformer Architecture". In cross-attention only the query passes the branch's LayerNorm; keys
and values are the encoder's output, normalised once by the encoder's last LayerNorm. fairseq places the norms of each
stack by a flag of its own (`--encoder-normalize-before`, `--decoder-normalize-before`); this method places both so.
`--pre-ln-scaled-init` is GPT-2's (Radford et al. 2019, section 2.3): the last matrix of each branch, out_proj and fc2,
drawn 1/sqrt(n) as wide, n the branches of the stack, 2M in GPT-2. Its base is N(0, 0.02^2); ours is the profile's.
"""

from .base import Method, Option, register


@register("pre_ln")
class PreLN(Method):
    """Pre-LN and nothing more: fairseq's `transformer` with --encoder- and --decoder-normalize-before."""

    title = "Pre-LN"
    equation = "x + f(LN(x))"
    paper = "Wang et al. 2019"
    norm = "pre"
    options = {"scaled_init": Option(False, "as GPT-2: out_proj and fc2 drawn 1/sqrt(branches of the stack) as wide")}

    def gain(self, site, role):
        if role not in ("out", "fc2"):
            return 1.0
        return self.coefficients(site.stack).get("gain", 1.0)

    def coefficients(self, stack):
        return {"gain": self.branches(stack) ** -0.5} if self.scaled_init else {}
