"""R-Fixup: y = x + m dropout(f(x - b)), without LayerNorm; last matrices start at 0, the others scaled by the depth.

Zhang, Dauphin, Ma 2019, "Fixup Initialization: Residual Learning Without Normalization", as its authors applied it to
Transformers (their fairseq model `transformer_zero`); DeepNet calls it R-Fixup. The matrices of branches have no
biases. In their place are learned numbers, b (0 at first) and m (1 at first), kept in float32; D is dropout:
    attention  x + m D(attn(x - b)), in cross-attention b shifts the query alone
    ffn        x + m D(fc2(drop(relu(fc1(x - b1) - b2)) - b3))
    the end of the encoder  m (x - b), of the decoder  x - b
Xavier-uniform init with L = 2N + 3M branches (2N or 2M in a stack alone): q, k, v times L^(-1/6), fc1 times L^(-1/2),
out_proj and fc2 zero, and so is an output projection that is not tied. The authors' code builds cross-attention with
L = 12 at any depth; we use the L at hand.
"""

from torch import nn

from ..slots import Multiply, Shift
from .base import Method, register

# role -> exponent of L in its gain; the gain of other roles is 0
POWER = {"q": -1 / 6, "k": -1 / 6, "v": -1 / 6, "fc1": -1 / 2}


@register("r_fixup")
class RFixup(Method):
    """Residual branches without LayerNorm, with a Shift (x - b) and a Multiply (m x) in place of matrices' biases."""

    title = "R-Fixup"
    equation = "x + m f(x - b), f without biases, last matrices 0 at first"
    paper = "Zhang et al. 2019 (ICLR)"
    norm = "none"
    bias = False  # of the branches' matrices
    init_profiles = ("xavier_legacy",)

    def before(self, site):
        return Shift()

    def hidden(self, site, dim):
        return Shift()

    def inner(self, site, dim):
        return Shift() if site.sublayer == "ffn" else None

    def outer(self, site):
        return Multiply()

    def ending(self, stack, dim):
        return nn.Sequential(Shift(), Multiply()) if stack == "encoder" else Shift()

    def gain(self, site, role):
        return self.coefficients(site.stack).get(role, 0.0)

    def coefficients(self, stack):
        """Return role -> gain of its matrices, for the roles whose gain is not 0; the same for both stacks."""
        branches = self.branches("encoder") + self.branches("decoder")  # L
        return {role: branches**power for role, power in POWER.items()}

    def output_gain(self):
        return 0.0
