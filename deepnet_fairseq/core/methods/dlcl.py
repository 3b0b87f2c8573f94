"""DLCL, dynamic linear combination of layers: layer l+1 reads x = sum_{k<=l} W[l,k] LN_k(y_k) of all outputs so far.

Wang et al. 2019, "Learning Deep Transformer Models for Machine Translation", its section of the method's name. y_0 is
the embedding, y_k the output of layer k; both stacks have a W of their own, (L+1, L+1), lower triangle, row l starting
at 1/(l+1); the layers are Pre-LN; one more row and the stack's last LayerNorm close the stack. LN_0 is the identity.
`--dlcl-norm post`: x = LN_l(sum_{k<=l} W[l,k] y_k) around Post-LN layers.
The authors' code keeps the history in module attributes (not re-entrant) and stacks all of it for each layer, O(L^2)
activations; here it lives in the forward pass, each y_k kept once. Its flag for a normalised embedding writes an
attribute nobody reads; `--dlcl-normalize-embedding` works. Vector weights, softmax and history dropout, off by default
there, are left out. W is float32, and so is the sum: its gradient is taken over all tokens.
"""

import torch
from torch import Tensor, nn

from ...errors import UserError
from ..slots import FullPrecision
from .base import Method, Option, register


class WeightedSum(torch.autograd.Function):
    """w (n,), h_1 to h_n (B, T, C) -> sum_k w[k] h_k (B, T, C), computed in the type of w, given in that of h_1.

    Keeps references to the h_k for the backward pass, and no products.
    """

    @staticmethod
    def forward(ctx, weights: Tensor, *states: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *states)
        total = torch.zeros_like(states[0], dtype=weights.dtype)
        for weight, state in zip(weights, states, strict=True):
            total += weight * state
        return total.to(states[0].dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        weights, *states = ctx.saved_tensors
        gradient = gradient.to(weights.dtype)
        of_weights = torch.stack([(gradient * state).sum() for state in states])
        return of_weights, *((weight * gradient).to(s.dtype) for weight, s in zip(weights, states, strict=True))


class LayerWeights(FullPrecision):
    """W (size, size), size = L+1; row i mixes the i+1 outputs there are after layer i, or the last `window` of them.

    init: "average", each row's weights equal with the sum 1, or "one", all of them 1; window: 0 for all outputs.
    """

    def __init__(self, size: int, init: str, window: int | None):
        super().__init__()
        self.window = window or size
        rows = torch.ones(size, size).tril_().triu_(1 - self.window)
        ones = torch.tensor([[min(row, self.window)] for row in range(1, size + 1)])
        self.weight = nn.Parameter(rows.div_(ones) if init == "average" else rows)

    def forward(self, history: list[Tensor]) -> Tensor:
        """The outputs so far, (B, T, C) each -> their combination (B, T, C)."""
        row, first = len(history) - 1, max(0, len(history) - self.window)
        return WeightedSum.apply(self.weight[row, first : row + 1], *history[first:])


class Combination(nn.Module):
    """The mixer of one stack, called as Method.mixer says: y (B, T, C) and the history it extends -> (B, T, C)."""

    def __init__(self, layers: int, dim: int, norm: str, normalize_embedding: bool, weights: LayerWeights):
        super().__init__()
        self.norm_first = norm == "pre"
        norms = [nn.LayerNorm(dim) if l or normalize_embedding else nn.Identity() for l in range(layers + 1)]
        self.norms = nn.ModuleList(norms)
        self.weights = weights

    def forward(self, y: Tensor, history: list[Tensor]) -> Tensor:
        norm = self.norms[len(history)]
        history.append(norm(y) if self.norm_first else y)
        x = self.weights(history)
        return x if self.norm_first else norm(x)


@register("dlcl")
class DLCL(Method):
    """Pre-LN or Post-LN layers with a Combination between them; UserError for --dlcl-window below 0."""

    equation = "x + f(LN(x)), each layer reads sum_k W_k LN(y_k)"
    paper = "Wang et al. 2019"
    norm = "pre"
    init_profiles = ("xavier_legacy", "fairseq_head")
    options = {
        "norm": Option("pre", "place of the LayerNorms in layers and combination", ("pre", "post")),
        "init": Option("average", "first weights: 1/(l+1), or 1", ("average", "one")),
        "normalize_embedding": Option(False, "a LayerNorm on the embedding among the outputs"),
        "window": Option(0, "combine the last so many outputs; 0 for all"),
    }

    def check(self):
        if self.window < 0:
            raise UserError(f"--dlcl-window {self.window}: must be at least 0, which is all outputs")

    def constants(self, stack):
        return {"window": float(self.window)} if self.window else {}

    def mixer(self, stack, dim):
        layers = self.depth(stack)
        weights = LayerWeights(layers + 1, self.init, self.window)
        return Combination(layers, dim, self.norm, self.normalize_embedding, weights)
