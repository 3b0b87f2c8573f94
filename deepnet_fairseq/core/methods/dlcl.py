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

DenseFormer (Pagliardini et al. 2024, "Enhancing Information Flow in Transformers via Depth Weighted Averaging",
section 3; decoder language models only) is `--dlcl-plain --dlcl-init last`: the y_k without LayerNorms, W[l,l] = 1 and
0 else at first, nothing before layer 1. Its dilation k and period p are `--dlcl-dilation`, `--dlcl-period`: layer
l + 1 reads y_l, y_(l-k), y_(l-2k), .. where p divides l, y_l elsewhere. One more LayerNorm closes the stack, as there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...errors import UserError
from ..modules import without_autocast
from ..slots import FullPrecision
from .base import Method, Option, register


@dataclass(frozen=True)
class Reach:
    """Outputs that a sum reads: every `dilation`-th of the last `window`, the newest included.

    There is a sum at each `period`-th row from row `first` on; elsewhere the newest output goes on alone.
    """

    window: int
    dilation: int = 1
    period: int = 1
    first: int = 0

    def sums(self, row: int) -> bool:
        """Tell whether there is a sum at this row."""
        return row >= self.first and row % self.period == 0

    def read_by(self, row: int) -> slice:
        """Return the outputs that the sum of this row reads."""
        oldest = max(0, row + 1 - self.window)
        return slice(oldest + (row - oldest) % self.dilation, row + 1, self.dilation)

    def readers_of(self, row: int, last: int) -> slice:
        """Return the sums, up to that of row `last`, that read the output of this row."""
        last = min(last, row + self.window - 1)
        step = math.lcm(self.dilation, self.period)
        for later in range(row, last + 1, self.dilation):
            if self.sums(later):
                return slice(later, last + 1, step)
        return slice(last + 1, last + 1, step)  # no sum reads it


class History:
    """State that the sums of one forward pass share: rows (L+1, B T C) in the type of W, the y_k, normalised or not.

    The backward pass adds gradients (L+1, B T C) of the sums that it has passed, and of_weights, the gradient of W.
    """

    gradients: Tensor
    of_weights: Tensor

    def __init__(self, sums: int, y: Tensor, dtype: torch.dtype):
        self.rows = y.new_empty(sums, y.numel(), dtype=dtype)
        self.backward_pass = -1  # the current one
        self.last = 0  # the sum with which it began

    def begin(self, row: int, weight: Tensor) -> None:
        """Note that a backward pass has reached the sum of this row; a new pass clears the state of the one before."""
        backward_pass = torch._C._current_graph_task_id()
        if backward_pass != self.backward_pass:
            self.backward_pass = backward_pass
            self.last = row
            self.gradients = torch.empty_like(self.rows)
            self.of_weights = torch.zeros_like(weight)


class WeightedSum(torch.autograd.Function):
    """Autograd function: newest y (B, T, C), W (L+1, L+1), history -> sum_k W[row,k] y_k (B, T, C) in the type of y.

    Autograd sees y alone. When the gradient of y is asked for, the gradients of all later sums have arrived, because
    each of them reads the one before through a layer; so the gradient of y is one product too. That of W is complete in
    row 0.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, history: History, row: int, reach: Reach) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.history, ctx.row, ctx.reach = history, row, reach
        history.rows[row].view(y.shape).copy_(y)
        if not reach.sums(row):
            return y.view_as(y)
        read = reach.read_by(row)
        with without_autocast(y):
            total = torch.mv(history.rows[read].t(), weight[row, read])
        return total.view(y.shape).to(y.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        history: History = ctx.history
        row: int = ctx.row
        reach: Reach = ctx.reach
        history.begin(row, weight)
        history.gradients[row].view(gradient.shape).copy_(gradient)

        readers = reach.readers_of(row, history.last)
        read = reach.read_by(row)
        with without_autocast(gradient):
            if ctx.needs_input_grad[1] and reach.sums(row):
                torch.mv(history.rows[read], history.gradients[row], out=history.of_weights[row, read])
            of_y = torch.mv(history.gradients[readers].t(), weight[readers, row])
        if not reach.sums(row):  # the output goes on as it is, too
            of_y += history.gradients[row]

        of_weights = None
        if row == 0:  # the last one of a backward pass: the gradient of W is complete
            if ctx.needs_input_grad[1]:
                of_weights = history.of_weights
            history.backward_pass = -1
            del history.gradients, history.of_weights
        return of_y.view(gradient.shape).to(gradient.dtype), of_weights, None, None, None


class LayerWeights(FullPrecision):
    """Weights W (size, size), size = L+1; row i mixes the outputs that exist after layer i and lie in its reach.

    init: "average", each row's weights equal with the sum 1, "one", all of them 1, or "last", 1 for the newest output
    and 0 for others; window: 0 for all outputs; dilation, period, first: those of Reach.
    """

    def __init__(self, size: int, init: str, window: int | None, dilation: int = 1, period: int = 1, first: int = 0):
        super().__init__()
        self.reach = Reach(window=window or size, dilation=dilation, period=period, first=first)
        rows = torch.eye(size)
        if init != "last":
            for row in range(size):
                if self.reach.sums(row):
                    read = rows[row, self.reach.read_by(row)]
                    read.fill_(1 / len(read) if init == "average" else 1)
        self.weight = nn.Parameter(rows)

    def forward(self, y: Tensor, history: list[Any]) -> Tensor:
        """Combine the newest output (B, T, C) with those before it, (B, T, C)."""
        if not history:
            history.append(History(len(self.weight), y, self.weight.dtype))
        row = len(history) - 1
        history.append(row)
        return WeightedSum.apply(y, self.weight, history[0], row, self.reach)


class Combination(nn.Module):
    """Mixer of one stack, called as Method.mixer says: y (B, T, C) and the history it extends -> (B, T, C).

    norm: "pre" for LayerNorms on the outputs that are summed, "post" for one on each sum; norm_embedding, norm_layers:
    whether the embedding has one, and whether each layer's output has.
    """

    def __init__(
        self, layers: int, dim: int, norm: str, norm_embedding: bool, norm_layers: bool, weights: LayerWeights
    ):
        super().__init__()
        self.norm_first = norm == "pre"
        self.norms = nn.ModuleList()
        for layer in range(layers + 1):  # 0: the embedding
            has_norm = norm_embedding if layer == 0 else norm_layers
            self.norms.append(nn.LayerNorm(dim) if has_norm else nn.Identity())
        self.weights = weights

    def forward(self, y: Tensor, history: list[Any]) -> Tensor:
        norm = self.norms[max(0, len(history) - 1)]
        if self.norm_first:
            return self.weights(norm(y), history)
        return norm(self.weights(y, history))


@register("dlcl")
class DLCL(Method):
    """Pre-LN or Post-LN layers with a Combination between them; UserError for too small a window, dilation, period."""

    title = "DLCL"
    equation = "x + f(LN(x)), each layer reads sum_k W_k LN(y_k)"
    paper = "Wang et al. 2019"
    norm = "pre"
    init_profiles = ("xavier_legacy", "fairseq_head")
    options = {
        "norm": Option("pre", "place of the LayerNorms in layers and combination", ("pre", "post")),
        "init": Option(
            "average", "first weights: 1/(l+1), 1, or 1 for the newest output alone", ("average", "one", "last")
        ),
        "normalize_embedding": Option(False, "a LayerNorm on the embedding among the outputs"),
        "window": Option(0, "combine the last so many outputs; 0 for all"),
        "plain": Option(False, "DenseFormer: no LayerNorms in the combination, nothing before layer 1"),
        "dilation": Option(1, "combine every k-th earlier output"),
        "period": Option(1, "combine after every p-th layer"),
    }

    def check(self):
        if self.window < 0:
            raise UserError(f"--dlcl-window {self.window}: must be at least 0, which is all outputs")
        for key, all_of_them in (("dilation", "all outputs"), ("period", "behind all layers")):
            if getattr(self, key) < 1:
                raise UserError(f"{self.flag(key)} {getattr(self, key)}: must be at least 1, which is {all_of_them}")

    def constants(self, stack):
        numbers = {key: getattr(self, key) for key in ("window", "dilation", "period")}
        return {key: float(number) for key, number in numbers.items() if number != self.options[key].default}

    def mixer(self, stack, dim):
        layers = self.depth(stack)
        weights = LayerWeights(
            size=layers + 1,
            init=self.init,
            window=self.window,
            dilation=self.dilation,
            period=self.period,
            first=int(self.plain),  # DenseFormer sums nothing before layer 1
        )
        return Combination(
            layers=layers,
            dim=dim,
            norm=self.norm,
            norm_embedding=self.normalize_embedding,
            norm_layers=not self.plain,
            weights=weights,
        )
