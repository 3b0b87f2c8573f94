"""GPAS: y = z - SiLU(g_l) sg(z), z = x + dropout(f(LN(x))): Pre-LN whose stream is shrunk, its gradient not.

Chen et al. 2025, "GPAS: Accelerating Convergence of LLM Pretraining via Gradient-Preserving Activation Scaling"
(arXiv:2506.22049), for decoder language models; sg passes no gradient, so that y is (1 - SiLU(g)) z and z has y's
gradient. g is 0 at first and no scale then. One g for the branches of a layer, as in the code (dandingsky/GPAS), whose
block stands in the layer. g stays float32: its gradient is a sum over all numbers of a batch.
The paper also puts GPAS on Sandwich-LN, LNS, and, on the shortcut alone, DeepNorm and Mix-LN; here is Pre-LN, of which
it tells most. Ours: encoders too, and cross-attention.
"""

import torch
import torch.nn.functional as F
from torch import nn

from ..slots import FullPrecision, Residual, multiply
from .base import Method, register


class Shrink(FullPrecision, Residual):
    """z - SiLU(g) sg(z), z = x + f of (B, T, C) each, g a number in float32; in the type of x."""

    def __init__(self, g: nn.Parameter):
        super().__init__()
        self.g = g

    def forward(self, x, f):
        return multiply(x + f, 1 - F.silu(self.g), straight=True)

    def scales(self):
        kept = 1 - F.silu(self.g)
        return kept, kept


@register("gpas")
class GPAS(Method):
    """A Shrink in place of every merge; those of a layer share one parameter g_l."""

    equation = "z - SiLU(g_l) sg(z), z = x + f(LN(x)), g_l = 0 at first"
    paper = "Chen et al. 2025"
    norm = "pre"

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.gates: dict[tuple, nn.Parameter] = {}

    def residual(self, site):
        return Shrink(self.gates.setdefault((site.stack, site.layer), nn.Parameter(torch.tensor(0.0))))
