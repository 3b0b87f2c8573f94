"""CompleteP, its rules for the depth alone: y = x + (L / L_base)^(-a) dropout(f(LN(x))), a = 1, for L layers.

Dey et al. 2025, "Don't be lazy: CompleteP enables compute-efficient deep transformers" (arXiv:2505.01618), Table 1,
for decoder language models of 2 to 128 layers; code EleutherAI/nanoGPT-mup, branch completep. Learning rate and other
settings that were tuned at L_base layers should be right at L layers too. With m = L / L_base, training at the same
width then needs
    Adam's eps of weights, biases and LayerNorms in layers  times m^(-a)
    their learning rate                                     times m^(a - 1), which is 1 at a = 1
    embeddings, positions, last LayerNorm, projection       as at L_base, eps and all
    weight decay, standard deviations of the initialisation as at L_base, so no initialisation that depends on depth
`deepnet methods complete_p --option base_depth=6` prints the factors. fairseq's Adam has one eps for all parameters;
--adam-eps times m^(-a) comes nearest. The authors' code too scaled the eps of all parameters until January 2026 (found
by arXiv:2512.22382). a = 1/2 is the rule that the paper compares with. Its rules for the width, muP, are left out.
Ours: encoders and cross-attention, each stack by its own number of layers, whether of two branches or three.
"""

import torch

from ...errors import UserError
from ..slots import Residual
from .base import Method, Option, register


class ScaledBranch(Residual):
    """Residual merge x + c f, (B, T, C) each, as one operation; factor: c, a constant."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x, f):
        return torch.add(x, f, alpha=self.factor)

    def scales(self):
        return 1.0, self.factor

    def extra_repr(self):
        return f"factor={self.factor:.6g}"


@register("complete_p")
class CompleteP(Method):
    """Pre-LN with the constant factor (L / L_base)^(-a) on every branch.

    Raises a UserError for a base depth below 1 and for an exponent outside [0.5, 1].
    """

    title = "CompleteP"
    equation = "x + (L_base / L) f(LN(x))"
    paper = "Dey et al. 2025"
    norm = "pre"
    options = {
        "base_depth": Option(2, "L_base, the layers of a stack at which learning rate and the rest were tuned"),
        "exponent": Option(1.0, "a: branches are scaled by (L / L_base) to the minus this"),
    }

    def check(self):
        if self.base_depth < 1:
            raise UserError(f"--complete-p-base-depth {self.base_depth}", "must be at least 1")
        if not 0.5 <= self.exponent <= 1:
            raise UserError(f"--complete-p-exponent {self.exponent}", "must be from 0.5 to 1")

    def residual(self, site):
        return ScaledBranch(self.coefficients(site.stack)["branch"])

    def coefficients(self, stack):
        """Return the factors on branches, and on Adam's learning rate and eps for the parameters of layers."""
        m = self.depth(stack) / self.base_depth
        a = self.exponent
        return {"branch": m**-a, "lr": m ** (a - 1), "adam_eps": m**-a}

    def constants(self, stack):
        return {"branch_factor": self.coefficients(stack)["branch"]}
