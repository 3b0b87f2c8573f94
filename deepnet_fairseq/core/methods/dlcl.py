"""DLCL, dynamic linear combination of layers: layer l+1 reads x = sum_{k<=l} W[l,k] LN_k(y_k) of all outputs so far.

Wang et al. 2019, "Learning Deep Transformer Models for Machine Translation", section "Dynamic Linear Combination of
Layers". y_0 is the embedding, y_k the output of layer k. Each stack of L layers has a lower triangular matrix W
(L+1, L+1), whose row l starts at 1/(l+1). The layers are Pre-LN. The combination by the last row, and a LayerNorm, end
the stack. LN_0 is the identity. `--dlcl-norm post`: x = LN_l(sum_{k<=l} W[l,k] y_k) around Post-LN layers.

The authors' code keeps the outputs in module attributes (not re-entrant) and stacks all of them for each layer, O(L^2)
activations. Here they are kept for one forward pass, each y_k once, as rows of one matrix, so that a combination is one
product of matrix and vector at any depth. The flag of that code for a normalised embedding writes an attribute that
nobody reads; `--dlcl-normalize-embedding` works. The code's vector weights, softmax and history dropout, off by
default, are left out. W is float32, and so are the rows and the sum, because the gradient of W is a sum over all
tokens.

DenseFormer (Pagliardini et al. 2024, "Enhancing Information Flow in Transformers via Depth Weighted Averaging",
section 3; decoder language models only) is `--dlcl-plain --dlcl-init last`: the y_k without LayerNorms, W[l,l] = 1 and
0 else at first, and layer 1 reads the embedding itself. Its dilation k and period p are `--dlcl-dilation`,
`--dlcl-period`: layer l + 1 reads a sum of y_l, y_(l-k), y_(l-2k), .. where p divides l, y_l elsewhere. One more
LayerNorm ends the stack, as in the paper.

In the code below a row is a row l of W: row 0 belongs to the embedding y_0, row l to the output y_l of layer l, and the
sum of row l is what layer l + 1 reads. B sentences, T tokens, C width in features.
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
    """Which outputs the sum of each row reads: every `dilation`-th of the last `window`, the newest included.

    There is a sum at each row that is divisible by `period`, from row `first` on. At other rows the next layer reads
    the newest output as it is.
    """

    window: int
    dilation: int = 1
    period: int = 1
    first: int = 0

    def has_sum(self, row: int) -> bool:
        """Tell whether there is a sum at this row."""
        return row >= self.first and row % self.period == 0

    def read_by(self, row: int) -> slice:
        """Return the indices k of the outputs that the sum of this row reads."""
        oldest_in_window = max(0, row + 1 - self.window)
        oldest = oldest_in_window + (row - oldest_in_window) % self.dilation  # from here the steps end at the newest
        return slice(oldest, row + 1, self.dilation)

    def readers_of(self, output: int, last: int) -> slice:
        """Return the rows, up to row `last`, whose sums read the output y_k, k = `output`."""
        last = min(last, output + self.window - 1)  # later windows begin behind y_k
        step = math.lcm(self.dilation, self.period)
        for row in range(output, last + 1, self.dilation):  # rows at the right distance, whether they have a sum or not
            if self.has_sum(row):  # the first reader; the others follow at equal steps
                return slice(row, last + 1, step)
        return slice(last + 1, last + 1, step)  # empty: no sum reads it


class History:
    """What the sums of one forward pass and of its backward pass share.

    rows (L+1, B T C), in the dtype of W: the outputs y_k as the sums read them, after their LayerNorms if there are any
    gradients (L+1, B T C), in the backward pass alone: row l holds the gradient of the sum of row l, once it is known
    gradient_of_weights (L+1, L+1), in the backward pass alone: the gradient of W, filled in row by row

    num_rows: L+1; y (B, T, C): an output, for shape and device; dtype: of W.
    """

    gradients: Tensor
    gradient_of_weights: Tensor

    def __init__(self, num_rows: int, y: Tensor, dtype: torch.dtype):
        self.rows = y.new_empty(num_rows, y.numel(), dtype=dtype)
        self.backward_pass = -1  # torch's number of the backward pass that is running, -1 for none
        self.last_row = 0  # the row at which that pass began: the last one that the loss depends on

    def begin(self, row: int, weight: Tensor) -> None:
        """Note that a backward pass has reached this row; if it is a new pass, clear what an earlier one has left.

        weight: W. A pass that ends before row 0, as for the gradient of a later layer alone, leaves its state behind.
        """
        backward_pass = torch._C._current_graph_task_id()
        if backward_pass != self.backward_pass:
            self.backward_pass = backward_pass
            self.last_row = row
            self.gradients = torch.empty_like(self.rows)
            self.gradient_of_weights = torch.zeros_like(weight)


class WeightedSum(torch.autograd.Function):
    """Autograd function: newest output y (B, T, C), W (L+1, L+1), history -> sum_k W[row,k] y_k (B, T, C).

    At a row without a sum (see Reach) the result is y itself. It has the dtype of y.

    Autograd knows y and W alone as inputs; earlier outputs are in the history, so their gradients have to be computed
    here. The gradient of y is sum_r W[r,row] g_r over this row and all later rows r whose sums read y, g_r being the
    gradient of the result of row r; where this row has no sum, g_row is added. All g_r are known by then, because each
    later sum depends on this one through a layer; so this is one product of matrix and vector too. The gradient of W is
    complete in row 0, which the backward pass reaches last.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, history: History, row: int, reach: Reach) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.history = history
        ctx.row = row
        ctx.reach = reach

        history.rows[row].view(y.shape).copy_(y)  # for the sums of this row and of later ones
        if not reach.has_sum(row):
            return y.view_as(y)  # the same numbers, in another tensor than the input
        read = reach.read_by(row)
        with without_autocast(y):  # autocast would compute in half precision
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
        weight_is_trained: bool = ctx.needs_input_grad[1]

        readers = reach.readers_of(row, history.last_row)
        read = reach.read_by(row)
        with without_autocast(gradient):
            if weight_is_trained and reach.has_sum(row):  # the gradient of W[row,k] is y_k . g_row
                torch.mv(history.rows[read], history.gradients[row], out=history.gradient_of_weights[row, read])
            of_y = torch.mv(history.gradients[readers].t(), weight[readers, row])
        if not reach.has_sum(row):  # forward has also returned y itself
            of_y += history.gradients[row]

        of_weights = None
        if row == 0:  # the end of the backward pass: the gradient of W is complete
            if weight_is_trained:
                of_weights = history.gradient_of_weights
            history.backward_pass = -1
            del history.gradients, history.gradient_of_weights
        # gradients of forward's arguments: y, weight, and none for history, row and reach
        return of_y.view(gradient.shape).to(gradient.dtype), of_weights, None, None, None


class LayerWeights(FullPrecision):
    """The matrix W (size, size), size = L+1, kept in float32, and the sums that it makes.

    init: values of W at first for the outputs that a row's sum reads: "average", equal with the sum 1; "one", all 1;
    "last", 1 for the newest output and 0 for others. window: of Reach, 0 or None for all outputs; dilation, period,
    first: those of Reach.
    """

    def __init__(self, size: int, init: str, window: int | None, dilation: int = 1, period: int = 1, first: int = 0):
        super().__init__()
        self.reach = Reach(window=window or size, dilation=dilation, period=period, first=first)
        matrix = torch.eye(size)  # the values of init "last", and of rows without a sum, which nothing reads
        if init != "last":
            for row in range(size):
                if self.reach.has_sum(row):
                    weights_of_row = matrix[row, self.reach.read_by(row)]  # a view
                    value = 1 / len(weights_of_row) if init == "average" else 1
                    weights_of_row.fill_(value)
        self.weight = nn.Parameter(matrix)

    def forward(self, y: Tensor, history: list[Any]) -> Tensor:
        """Combine the newest output y (B, T, C) with those before it, and return what the next layer reads, (B, T, C).

        history: the list of Method.mixer. Its first item is the History of this forward pass; the items after it are
        only counted, and their count is the number of the present row.
        """
        if not history:
            history.append(History(len(self.weight), y, self.weight.dtype))
        row = len(history) - 1
        history.append(row)  # so that the next call finds row + 1
        return WeightedSum.apply(y, self.weight, history[0], row, self.reach)


class Combination(nn.Module):
    """Module that stands between layers, called as combination(y, history) before the first and after each layer.

    It maps the newest output y (B, T, C) to what the next layer reads, (B, T, C); history: the list of Method.mixer, in
    which LayerWeights keeps the earlier outputs. layers: L; dim: C; norm: "pre" for LayerNorms on the outputs that are
    summed, "post" for one on each sum. norm_embedding, norm_layers: whether there is a LayerNorm for the embedding's
    row, and whether for each layer's. weights: the module with the matrix W, which makes the sums.
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
        row = max(0, len(history) - 1)  # the row that LayerWeights.forward is about to compute
        norm = self.norms[row]
        if self.norm_first:
            return self.weights(norm(y), history)
        return norm(self.weights(y, history))


@register("dlcl")
class DLCL(Method):
    """Pre-LN or Post-LN layers with a Combination between them.

    Raises a UserError for a window below 0 and for a dilation or period below 1.
    """

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
        "window": Option(0, "number of last outputs that are combined; 0 for all"),
        "plain": Option(False, "DenseFormer: no LayerNorms in the combination, nothing before layer 1"),
        "dilation": Option(1, "k; every k-th earlier output is combined"),
        "period": Option(1, "p; outputs are combined after every p-th layer"),
    }

    def check(self):
        if self.window < 0:
            raise UserError(f"--dlcl-window {self.window}", "must be at least 0, which is all outputs")
        for key, meaning_of_1 in (("dilation", "all outputs"), ("period", "behind all layers")):
            value = getattr(self, key)
            if value < 1:
                raise UserError(f"{self.flag(key)} {value}", f"must be at least 1, which is {meaning_of_1}")

    def constants(self, stack):
        """Return the options of Reach that differ from their defaults, which no name or shape of a parameter shows."""
        constants = {}
        for key in ("window", "dilation", "period"):
            value = getattr(self, key)
            if value != self.options[key].default:
                constants[key] = float(value)
        return constants

    def mixer(self, stack, dim):
        layers = self.depth(stack)
        weights = LayerWeights(
            size=layers + 1,  # the embedding and the output of each layer
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
