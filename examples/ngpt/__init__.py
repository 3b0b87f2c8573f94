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

# modules whose weight matrix has the hidden state's C numbers in its rows, or in its columns
ROWS = ("q_proj", "k_proj", "v_proj", "fc1", "embed_tokens", "output_projection")
COLUMNS = ("out_proj", "fc2")


def on_sphere(x: Tensor) -> Tensor:
    """Divide each vector (.., C) by its length; a vector of zeros stays.

    rms_norm divides by the root of the mean square, which is the length over C^(1/2).
    """
    return F.rms_norm(x, x.shape[-1:], eps=1e-12) * x.size(-1) ** -0.5


class OnSphere(nn.Module):
    """Module of on_sphere, without parameters."""

    def forward(self, x):
        """Return Norm(x), (.., C)."""
        return on_sphere(x)


class Scale(FullPrecision):
    """Learned vector of `size` factors that begin at `first`: s times first / scale, where s begins at `scale`.

    Adam moves a parameter by about the learning rate, so that the factors move by first / scale times it. The vector of
    one number serves as a single factor for all features.
    """

    def __init__(self, size: int, first: float, scale: float):
        super().__init__()
        self.s = nn.Parameter(torch.full((size,), scale))
        self.unit = first / scale

    def factor(self, x: Tensor) -> Tensor:
        """Return the factors, (size,), in the type of x."""
        return (self.s * self.unit).to(x.dtype)

    def forward(self, x):
        """Multiply x, (.., size), feature by feature; if size is 1, all features of x by the one number."""
        return x * self.factor(x)


class Step(Scale):
    """Residual connection on the sphere: from the shortcut x a step a o (f - x) towards the branch f, and back onto it.

    The factors a are learned; x and f, (.., C) each, are on the sphere.
    """

    def forward(self, x, f):
        """Return Norm(x + a o (f - x))."""
        return on_sphere(torch.addcmul(x, self.factor(x), f - x))

    def branch_and_sum(self, x, f):
        """Return the step that is added to x, and the result, both (.., C): probes of residual sums ask for them."""
        return self.factor(x) * (f - x), self.forward(x, f)


class Heads(Scale):
    """Normalisation of queries and keys by head: (.., h, d) for h heads of d features.

    The paper multiplies scores by d^(1/2), where attention divides them by it. So queries and keys both get another
    factor d^(1/2) here.
    """

    def forward(self, x, role):
        """Return d^(1/2) s_qk o Norm(x) for the roles "q" and "k", and x as it is for "v"."""
        if role == "v":
            return x
        scale = self.factor(x) * math.sqrt(x.size(-1))  # one number for each of the h d features
        return on_sphere(x) * scale.view(x.shape[-2:])


@register("ngpt")
class NGPT(Method):
    """nGPT: Norm in the slots `beginning`, `outer` and `residual`; weights are normalised after each update.

    Every function but after_update returns the module of a slot, see core.methods.Method. site.dim is C, the width of
    the hidden states.
    """

    equation = "Norm(x + a o (Norm(f(x)) - x)), Norm to length 1, weights too"
    paper = "Loshchilov et al. 2024"
    norm = "none"
    bias = False

    def heads(self, site, dim):
        """Return the module on queries and keys: s_qk has C numbers that begin at 1, with the scale C^(-1/2)."""
        return Heads(site.dim, 1.0, site.dim**-0.5)

    def hidden(self, site, dim):
        """Return the factor on fc1's output: s_u C^(1/2), `dim` numbers, with s_u = 1 at the start and the scale 1."""
        return Scale(dim, math.sqrt(site.dim), 1.0)

    def outer(self, site):
        """Return the Norm on a branch's output."""
        return OnSphere()

    def residual(self, site):
        """Return the residual connection: a has C numbers that begin at 0.05, with the scale C^(-1/2)."""
        return Step(site.dim, 0.05, site.dim**-0.5)

    def beginning(self, stack, dim):
        """Return the Norm on the embeddings."""
        return OnSphere()

    def ending(self, stack, dim):
        """Return s_z on the output of a decoder, or of an encoder alone; None for one whose output a decoder reads."""
        has_logits = stack == "decoder" or not self.num_decoder_layers
        return Scale(1, dim**0.5, dim**-0.5) if has_logits else None

    def after_update(self, weights: Mapping[str, Tensor]) -> None:
        """Divide the rows or columns of the weight matrices by their lengths, in place. weights: parameters by name."""
        for name, weight in weights.items():
            module = name.removesuffix(".weight").rpartition(".")[2]  # "decoder.layers.0.fc1.weight" -> "fc1"
            if module in ROWS:
                weight.copy_(F.normalize(weight, dim=1))
            elif module in COLUMNS:
                weight.copy_(F.normalize(weight, dim=0))
