"""Post-LN-init: y = LN(x + dropout(f(x))), weights of layer l divided by N - l + 1.

Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers", section 3: lower layers start smaller, the top layer
of each stack as usual (M - l + 1 in the decoder); the direction opposite to DS-Init. Shown at 18L-18L on IWSLT-14,
where Post-LN diverges and this does not. No code was released. "The weights of the l-th layer" are taken to be all its
matrices; `--post-ln-init-weights output` scales out_proj and fc2 alone. Simulated, the paper's Figure 4 points at
fairseq's own init as the base, and cannot tell the two readings apart.
"""

from .base import Method, Option, register

OUTPUTS = ("out", "fc2")  # roles of a branch's last matrix


@register("post_ln_init")
class PostLNInit(Method):
    """Post-LN with the factor 1 / (N - l + 1) on the std of the matrices of layer l."""

    title = "Post-LN-init"
    equation = "LN(x + f(x)), W_l drawn 1/(N - l + 1) as wide"
    paper = "Wang et al. 2022, section 3"
    options = {"weights": Option("all", "the matrices to scale: all, or the last of each branch", ("all", "output"))}

    def gain(self, site, role):
        if self.weights == "output" and role not in OUTPUTS:
            return 1.0
        return 1 / (self.depth(site.stack) - site.layer + 1)
