"""DLCL, dynamic linear combination of layers: layer l+1 reads x = sum_{k<=l} W[l,k] LN_k(y_k) of all outputs so far.

Wang et al. 2019, "Learning Deep Transformer Models for Machine Translation", its section of the method's name. y_0 is
the embedding, y_k the output of layer k; both stacks have a W of their own, (L+1, L+1), lower triangle, row l starting
at 1/(l+1); the layers are Pre-LN; one more row and the stack's last LayerNorm close the stack. LN_0 is the identity.
`--dlcl-norm post`: x = LN_l(sum_{k<=l} W[l,k] y_k) around Post-LN layers.
The authors' code keeps the history in module attributes (not re-entrant) and stacks all of it for each layer, O(L^2)
activations; here it lives in the forward pass, each y_k kept once, in the rows of one matrix, so that a sum is one
product and a layer costs as many operations as any other. Its flag for a normalised embedding writes an attribute
nobody reads; `--dlcl-normalize-embedding` works. Vector weights, softmax and history dropout, off by default there, are
left out. W is float32, and so are the rows and the sum: its gradient is taken over all tokens.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...errors import UserError
from ..modules import autocasts
from ..slots import FullPrecision
from .base import Method, Option, register


class History:
    """What all sums of one forward pass share: rows (L+1, B T C) in the type of W, the y_k or their normalised ones.

    In the backward pass also gradients (L+1, B T C) of the sums that it has passed, and of_weights, that of W.
    """

    gradients: Tensor
    of_weights: Tensor

    def __init__(self, sums: int, y: Tensor, dtype: torch.dtype):
        self.rows = y.new_empty(sums, y.numel(), dtype=dtype)
        self.backward_pass, self.last = -1, 0  # which one it is, and the sum with which it began

    def begin(self, row: int, weight: Tensor) -> None:
        """A backward pass has come to the sum of this row: if it is another pass, nothing is left of the one before."""
        backward_pass = torch._C._current_graph_task_id()
        if backward_pass != self.backward_pass:
            self.backward_pass, self.last = backward_pass, row
            self.gradients = torch.empty_like(self.rows)
            self.of_weights = torch.zeros_like(weight)


class WeightedSum(torch.autograd.Function):
    """y (B, T, C), the newest, W (L+1, L+1), the history, window -> sum_k W[row,k] y_k (B, T, C) in the type of y.

    Autograd knows of y alone. A gradient of the sums behind it has come when its own is asked for, because each of them
    reads the one before through a layer; so that of y is one product too. That of W is complete in row 0.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, history: History, row: int, window: int) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.history, ctx.row, ctx.window = history, row, window
        history.rows[row].view(y.shape).copy_(y)
        first = max(0, row + 1 - window)
        with _as_they_are(y):
            total = torch.mv(history.rows[first : row + 1].t(), weight[row, first : row + 1])
        return total.view(y.shape).to(y.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (weight,), history, row, window = ctx.saved_tensors, ctx.history, ctx.row, ctx.window
        history.begin(row, weight)
        history.gradients[row].view(gradient.shape).copy_(gradient)
        first, last = max(0, row + 1 - window), min(history.last, row + window - 1)
        with _as_they_are(gradient):
            if ctx.needs_input_grad[1]:
                of_row = history.of_weights[row, first : row + 1]
                torch.mv(history.rows[first : row + 1], history.gradients[row], out=of_row)
            of_y = torch.mv(history.gradients[row : last + 1].t(), weight[row : last + 1, row])
        of_weights = history.of_weights if row == 0 and ctx.needs_input_grad[1] else None
        if row == 0:
            history.backward_pass = -1
            del history.gradients, history.of_weights
        return of_y.view(gradient.shape).to(gradient.dtype), of_weights, None, None, None


def _as_they_are(tensor: Tensor) -> AbstractContextManager:
    """Autocast would round float32 to half precision."""
    return torch.autocast(tensor.device.type, enabled=False) if autocasts(tensor) else nullcontext()


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

    def forward(self, y: Tensor, history: list[Any]) -> Tensor:
        """The newest output (B, T, C) -> its combination with those before it (B, T, C)."""
        if not history:
            history.append(History(len(self.weight), y, self.weight.dtype))
        row = len(history) - 1
        history.append(row)
        return WeightedSum.apply(y, self.weight, history[0], row, self.window)


class Combination(nn.Module):
    """The mixer of one stack, called as Method.mixer says: y (B, T, C) and the history it extends -> (B, T, C)."""

    def __init__(self, layers: int, dim: int, norm: str, normalize_embedding: bool, weights: LayerWeights):
        super().__init__()
        self.norm_first = norm == "pre"
        norms = [nn.LayerNorm(dim) if l or normalize_embedding else nn.Identity() for l in range(layers + 1)]
        self.norms = nn.ModuleList(norms)
        self.weights = weights

    def forward(self, y: Tensor, history: list[Any]) -> Tensor:
        norm = self.norms[max(0, len(history) - 1)]
        return self.weights(norm(y), history) if self.norm_first else norm(self.weights(y, history))


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
