"""ReZero: y = x + a_l dropout(f(x)), a_l = 0 at first, without any LayerNorm.

Bachlechner et al. 2020, "ReZero is All You Need: Fast Convergence at Large Depth". One number a_l for all branches of
layer l, as in the authors' code; `--rezero-per-sublayer` gives each branch its own. At the first step only the a_l, the
embeddings and the output projection have a gradient that is not 0, and behind an encoder those of the decoder alone.
Nothing bounds the residual stream, which makes the method unstable in fp16 even when shallow (DeepNet ran it in fp32).
Therefore a_l is kept and the sum computed in float32; `--rezero-fp32` also keeps the stream in float32 between the
branches.
"""

import torch
from torch import nn

from ..slots import FullPrecision, Residual
from .base import Method, Option, register


class Gate(FullPrecision, Residual):
    """Residual merge x + a f, (B, T, C) each, computed in float32.

    a: a trained number (), which several merges may share; widen: return the sum in float32, not in the dtype of x.
    """

    def __init__(self, a: nn.Parameter, widen: bool):
        super().__init__()
        self.a = a
        self.widen = widen

    def forward(self, x, f):
        y = torch.addcmul(x.to(self.a.dtype), f.to(self.a.dtype), self.a)
        return y if self.widen else y.to(x.dtype)

    def scales(self):
        return 1.0, self.a


class Narrow(nn.Module):
    """Cast the stream, which is float32 with --rezero-fp32, to the dtype of the model's weights."""

    def __init__(self):
        super().__init__()
        self.register_buffer("like", torch.empty(0), persistent=False)  # cast with the model, and so has its dtype

    def forward(self, x):
        return x.to(self.like.dtype)


@register("rezero")
class ReZero(Method):
    """Residual branches without LayerNorm, each merged by a Gate; the gates of a layer share one a_l.

    With the option per_sublayer each gate has its own number.
    """

    title = "ReZero"
    equation = "x + a_l f(x), a_l = 0 at first"
    paper = "Bachlechner et al. 2020"
    norm = "none"
    options = {
        "per_sublayer": Option(False, "a learned factor for each branch instead of each layer"),
        "fp32": Option(False, "residual stream in float32 under --fp16 and --bf16"),
    }

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        # (stack, layer, branch, or None where all branches share it) -> a; `residual` adds them
        self.gates: dict[tuple[str, int, str | None], nn.Parameter] = {}

    def constants(self, stack):
        return {}  # `widen` would be found, but it is a matter of precision, which may change

    def residual(self, site):
        branch = site.sublayer if self.per_sublayer else None
        # made for the first branch that has this number
        a = self.gates.setdefault((site.stack, site.layer, branch), nn.Parameter(torch.tensor(0.0)))
        return Gate(a, self.fp32)

    def before(self, site):
        return Narrow() if self.fp32 else None

    def ending(self, stack, dim):
        return Narrow() if self.fp32 else None
