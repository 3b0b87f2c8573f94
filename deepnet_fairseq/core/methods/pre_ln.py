"""Pre-LN: y = x + dropout(f(LN(x))), with one more LayerNorm at the end of each stack.

Wang et al. 2019, "Learning Deep Transformer Models for Machine Translation"; Xiong et al. 2020, "On Layer
Normalization in the Transformer Architecture". In cross-attention only the query passes the branch's LayerNorm; keys
and values are the encoder's output, normalised once by the encoder's last LayerNorm. fairseq places the norms of each
stack by a flag of its own (`--encoder-normalize-before`, `--decoder-normalize-before`); this method sets both.
"""

from .base import Method, register


@register("pre_ln")
class PreLN(Method):
    """No slot filled, LayerNorms before the branches: fairseq's `transformer` with both --*-normalize-before."""

    equation = "x + f(LN(x))"
    paper = "Wang et al. 2019"
    norm = "pre"
