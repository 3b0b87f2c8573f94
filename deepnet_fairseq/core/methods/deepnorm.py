"""DeepNorm: y = LN(alpha * x + dropout(f(x))), Xavier-normal init with gain beta on v, out, fc1, fc2 and 1 on q, k.

Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers", Figure 2. For N encoder and M decoder layers
    encoder  alpha = 0.81 (N^4 M)^(1/16)   beta = 0.87 (N^4 M)^(-1/16)
    decoder  alpha = (3M)^(1/4)            beta = (12M)^(-1/4)
    alone    alpha = (2N)^(1/4)            beta = (8N)^(-1/4)   encoder-only, and decoder-only with M
All biases start at 0; embeddings, positions and the output projection keep fairseq's init.
torchscale differs: its encoder gain is 1.15 (N^4 M)^(-1/16), the published constant inverted; it divides torch's
default init (biases too) instead of drawing Xavier; and at 4d1e0e8, not in release 0.3.0, `deepnorm=True` leaves its
decoder Pre-LN.
Published baselines of its name are other methods: MixLN's and LayerNorm-Scaling's draw with (8N)^(+1/4), and have the
alpha of 32 layers at any depth; Keel's has (2M)^(-1/4), sqrt(2) too wide.
"""

from ..slots import ConstantShortcut
from .base import Method, register

BETA_ROLES = ("v", "out", "fc1", "fc2")  # roles of the matrices that are drawn with gain beta


@register("deepnorm")
class DeepNorm(Method):
    """Post-LN with a constant alpha on shortcuts, saved with the model, and beta in the initialisation alone."""

    title = "DeepNorm"
    equation = "LN(alpha x + f(x))"
    paper = "Wang et al. 2022"
    norm = "post"
    init_profiles = ("xavier_normal", "xavier_uniform")

    def coefficients(self, stack):
        """Return alpha and beta of Figure 2, whose 0.81 and 0.87 are rounded (appendix B has 0.814 and 0.869)."""
        N, M = self.num_encoder_layers, self.num_decoder_layers
        if stack == "encoder" and M:
            growth = (N**4 * M) ** (1 / 16)
            return {"alpha": 0.81 * growth, "beta": 0.87 / growth}
        branches = self.branches(stack)  # 3M in a decoder that attends to an encoder, 2N or 2M in a stack alone
        return {"alpha": branches**0.25, "beta": (4 * branches) ** -0.25}

    def residual(self, site):
        return ConstantShortcut(self.coefficients(site.stack)["alpha"])

    def gain(self, site, role):
        return self.coefficients(site.stack)["beta"] if role in BETA_ROLES else 1.0

    def constants(self, stack):
        return {"alpha": self.coefficients(stack)["alpha"]}

    # wrong betas in the code of others, by description, which `deepnet verify` recognises; m is the method
    mistaken_gains = {
        "beta is (8N)^(+1/4), the published constant inverted": lambda m, stack: 1 / m.coefficients(stack)["beta"],
        "beta is sqrt(2) too wide: L^(-1/4) of L sub-layers": lambda m, stack: 2**0.5 * m.coefficients(stack)["beta"],
        "beta is L^(-1/2) of L sub-layers": lambda m, stack: m.branches(stack) ** -0.5,
        "encoder beta 1.15 (N^4 M)^(-1/16): torchscale's": lambda m, stack: (
            m.coefficients(stack)["beta"] * (1.15 / 0.87 if stack == "encoder" and m.num_decoder_layers else 1)
        ),
    }
