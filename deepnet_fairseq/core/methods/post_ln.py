"""Post-LN: y = LN(x + dropout(f(x))).

Vaswani et al. 2017, "Attention Is All You Need", section 3.1. The name Post-LN hides two initialisations: fairseq since
March 2020 draws fc1 and fc2 from U(-1/sqrt(fan_in), 1/sqrt(fan_in)), as torch's Linear does (`--init-profile
fairseq_head`); the code bases of Admin, T-Fixup and DLCL still drew them Xavier-uniform with zero biases
(`xavier_legacy`).
"""

from .base import Method, register


@register("post_ln")
class PostLN(Method):
    """Post-LN and nothing more: fairseq's `transformer`, initialised like it too with --init-profile fairseq_head."""

    title = "Post-LN"
    equation = "LN(x + f(x))"
    paper = "Vaswani et al. 2017"
    norm = "post"
