"""GPAS: y = z - SiLU(g_l) sg(z), z = x + dropout(f(LN(x))): Pre-LN that scales the stream down, but not its gradient.

Chen et al. 2025, "GPAS: Accelerating Convergence of LLM Pretraining via Gradient-Preserving Activation Scaling"
(arXiv:2506.22049), for decoder language models. sg is a stop-gradient: y is (1 - SiLU(g)) z, but the gradient of z is
that of y. g is learned, and 0 at first, when y is z. The branches of a layer share one g, as in the authors' code
(dandingsky/GPAS), where it belongs to the layer. g stays float32: its gradient is a sum over all numbers of a batch. At
7B parameters that code clips the gradient of all g to 0.01, `--gpas-clip 0.01`; it does so after the clipping of all
gradients, we before it. The paper also has GPAS on Sandwich-LN and LN-Scaling, and on the shortcut alone of DeepNorm
and Mix-LN; here it is on Pre-LN. Ours: encoders too, and cross-attention.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from ...errors import UserError
from ..slots import FullPrecision, Residual, multiply
from .base import Method, Option, register


class Shrink(FullPrecision, Residual):
    """Residual merge z - SiLU(g) sg(z), z = x + f, (B, T, C) each; the result has the dtype of z.

    g: a number () in float32. gradient_clip: largest L2 norm of the gradients of all g of a model together, 0 for no
    limit; plugin/optimisers/papers.py reads it.
    """

    def __init__(self, g: nn.Parameter, gradient_clip: float = 0.0):
        super().__init__()
        self.g = g
        self.gradient_clip = gradient_clip

    def forward(self, x, f):
        z = x + f
        kept = 1 - F.silu(self.g)
        return multiply(z, kept, straight=True)  # straight: the gradient of z is that of y, without the factor

    def scales(self):
        kept = 1 - F.silu(self.g)
        return kept, kept  # factors of x and of f


@register("gpas")
class GPAS(Method):
    """Pre-LN with a Shrink in place of every residual sum; those of a layer share one g_l.

    Raises a UserError for a clip below 0 or infinite.
    """

    title = "GPAS"
    equation = "z - SiLU(g_l) sg(z), z = x + f(LN(x)), g_l = 0 at first"
    paper = "Chen et al. 2025"
    norm = "pre"
    options = {"clip": Option(0.0, "largest norm of the gradient of all g together; 0 for no limit")}

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.gates: dict[tuple[str, int], nn.Parameter] = {}  # (stack, layer) -> g; `residual` adds them

    def check(self):
        if not 0 <= self.clip < math.inf:
            raise UserError(f"--gpas-clip {self.clip}", "must be a number from 0 on")

    def constants(self, stack):
        return {}  # gradient_clip would be found, but a training may be resumed with another one

    def residual(self, site):
        # the layer's g, made for its first branch
        g = self.gates.setdefault((site.stack, site.layer), nn.Parameter(torch.tensor(0.0)))
        return Shrink(g, self.clip)
