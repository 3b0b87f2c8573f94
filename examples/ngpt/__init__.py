"""nGPT as a `--user-dir`: hidden states and weights on the unit sphere, y = Norm(x + a o (Norm(f(x)) - x)).

Norm(z) = z / |z|. The method shows how Method.after_update is used.

Loshchilov et al. 2024, "nGPT: Normalized Transformer with Representation Learning on the Hypersphere" (arXiv
2410.01131), section 2, for decoder language models. There are no LayerNorms and no biases, and the paper trains without
warm-up and weight decay. After each update every row of q, k, v, fc1, embedding and output projection, and every column
of out and fc2, is divided by its length. Queries and keys are s_qk o Norm(.) by head, and scores are multiplied by
sqrt(d), with d features a head; fc1's output is multiplied by s_u sqrt(C), and the logits by s_z. A vector that begins
at `first` is learnt as first * s / scale with s = scale at the start, which sets its learning rate under Adam: a
(0.05), s_qk (1) and s_z have the scale C^(-1/2), s_u (1) has 1. These vectors stay in float32.

Differences from the paper: encoders and cross-attention are supported. ReLU with one matrix replaces the gated SiLU.
fairseq's positions, added before the embedding is normalised, replace rotations. s_z is one number, C^(1/2) at the
start, because no slot covers the logits (the paper has one number a word, 1 at the start). Weights are normalised from
the first update on; before it their lengths change only the logits, by a few per cent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deepnet_fairseq

deepnet_fairseq.register()  # before methods of one's own

from deepnet_fairseq.core.methods import Method, register  # noqa: E402
from deepnet_fairseq.core.slots import FullPrecision  # noqa: E402

ROWS = ("q_proj", "k_proj", "v_proj", "fc1", "embed_tokens", "output_projection")
COLUMNS = ("out_proj", "fc2")


def on_sphere(x: Tensor) -> Tensor:
    """Divide each vector (.., C) by its length; a vector of zeros stays."""
    return F.rms_norm(x, x.shape[-1:], eps=1e-12) * x.size(-1) ** -0.5


class OnSphere(nn.Module):
    """Normalisation of vectors to length 1: Norm(x), (.., C)."""

    def forward(self, x):
        return on_sphere(x)


class Scale(FullPrecision):
    """Learned factor of `size` numbers that begins at `first` and is learnt in units of `scale`."""

    def __init__(self, size: int, first: float, scale: float):
        super().__init__()
        self.s = nn.Parameter(torch.full((size,), scale))
        self.unit = first / scale

    def factor(self, x: Tensor) -> Tensor:
        """Return the factor in the type of x."""
        return (self.s * self.unit).to(x.dtype)

    def forward(self, x):
        return x * self.factor(x)


class Step(Scale):
    """Step on the sphere: Norm(x + a o (f - x)), (.., C) each, with f on the sphere."""

    def forward(self, x, f):
        return on_sphere(torch.addcmul(x, self.factor(x), f - x))

    def branch_and_sum(self, x, f):
        """Return what is added to x, and the sum on the sphere, for probes."""
        return self.factor(x) * (f - x), self.forward(x, f)


class Heads(Scale):
    """Normalisation of heads (.., h, d): d^(1/2) s_qk o Norm(.), so that scores over d^(1/2) are the paper's."""

    def forward(self, x, role):
        if role == "v":
            return x
        scale = self.factor(x) * math.sqrt(x.size(-1))  # one number for each of the h d features
        return on_sphere(x) * scale.view(x.shape[-2:])


@register("ngpt")
class NGPT(Method):
    """nGPT: Norm in the slots `beginning`, `outer` and `residual`; weights are normalised after each update."""

    equation = "Norm(x + a o (Norm(f(x)) - x)), Norm to length 1, weights too"
    paper = "Loshchilov et al. 2024"
    norm = "none"
    bias = False

    def heads(self, site, dim):
        return Heads(site.dim, 1.0, site.dim**-0.5)

    def hidden(self, site, dim):
        return Scale(dim, math.sqrt(site.dim), 1.0)

    def outer(self, site):
        return OnSphere()

    def residual(self, site):
        return Step(site.dim, 0.05, site.dim**-0.5)

    def beginning(self, stack, dim):
        return OnSphere()

    def ending(self, stack, dim):
        has_logits = stack == "decoder" or not self.num_decoder_layers
        return Scale(1, dim**0.5, dim**-0.5) if has_logits else None

    def after_update(self, weights: Mapping[str, Tensor]) -> None:
        for name, weight in weights.items():
            module = name.removesuffix(".weight").rpartition(".")[2]
            if module in ROWS:
                weight.copy_(F.normalize(weight, dim=1))
            elif module in COLUMNS:
                weight.copy_(F.normalize(weight, dim=0))
