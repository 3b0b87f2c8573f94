"""Two faster kernels for half precision inside graphs: the gradients of biases and of LayerNorms.

These gradients are sums over the rows of a matrix (N, C), of N positions and C features, for which torch has slow
kernels. On an H200, for N = 4,000 and C = 512, torch's gradient of a bias took 10.4 us, where a product with a row of
ones takes 5.6; torch's gradients of a LayerNorm took 18.5 us in two kernels.
The model is left as it is: a torch dispatch mode replaces the operators while a graph is captured. Sums are in float32
as torch's are, in another order. Without Triton, which comes with torch's builds for CUDA, the gradients of LayerNorms
are computed by torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

HALF = (torch.float16, torch.bfloat16)
# The gradients of a LayerNorm take two kernels. The work of a kernel is divided among Triton's "programs", which run in
# parallel. In the first kernel every program takes some of the rows and adds them up; the second kernel adds up these
# sums. A tile is the block of rows that a program of the first kernel loads at a time.
MOST_PROGRAMS = 264  # of the first kernel: two for each of the 132 multiprocessors of an H100
TILE = 2048  # elements of a tile: as many rows as fit, at least one
WIDEST = 2048  # width of the widest LayerNorm that is replaced: one row has to fit into a tile
COLUMNS = 32  # columns that each program of the second kernel adds up


class FasterKernels(TorchDispatchMode):
    """Mode that replaces two operators of the backward pass, where their arguments allow it.

    most_rows: rows of the largest matrix of activations; the sum over more rows is left to torch.
    """

    def __init__(self, most_rows: int, device: torch.device):
        super().__init__()
        # Made here, outside of a capture: within one, only a replay of that graph would fill it with ones, but the
        # other graphs would read it too.
        self.ones = {dtype: torch.ones(1, most_rows, dtype=dtype, device=device) for dtype in HALF}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Return the result of an operator, by a faster kernel if there is one; torch calls this for each operator."""
        kwargs = kwargs or {}
        # autograd sums the gradient of a bias without keyword arguments, such as another dtype for the sum
        if func is torch.ops.aten.sum.dim_IntList and not kwargs:
            summed = self.sum_of_rows(*args)
            if summed is not None:
                return summed
        if func is torch.ops.aten.native_layer_norm_backward.default and triton is not None:
            gradients = layer_norm_backward(*args)
            if gradients is not None:
                return gradients
        return func(*args, **kwargs)

    def sum_of_rows(self, x: Tensor, dims: list[int], keepdim: bool = False) -> Tensor | None:
        """Return the sum of a matrix (N, C) in half precision over its N rows; None for a sum that is left to torch.

        x, dims, keepdim: as aten's sum takes them. The sum is (C,), or (1, C) with keepdim.
        """
        if list(dims) != [0] or x.dim() != 2 or x.dtype not in HALF:
            return None  # no sum over the rows of a matrix in half precision
        rows = x.size(0)
        ones = self.ones[x.dtype]
        if rows > ones.size(1):  # more than most_rows
            return None
        summed = ones[:, :rows] @ x
        return summed if keepdim else summed[0]


def layer_norm_backward(
    gradient: Tensor, x: Tensor, shape: list[int], mean: Tensor, rstd: Tensor,
    weight: Tensor | None, bias: Tensor | None, wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor] | None:  # fmt: skip
    """Return the gradients of x, weight and bias of a LayerNorm; None where aten's operator has to compute them.

    The arguments are those of aten's native_layer_norm_backward. gradient: of the output, (..., C) as x; shape: of what
    is normalised, [C]; mean, rstd: of each row of x in float32, rstd = 1 / sqrt(variance + eps); weight, bias: (C,),
    None in a LayerNorm without; wanted: whether the gradients of x, weight and bias are needed.
    """
    # the kernels compute all three gradients, of rows in half precision that lie one after the other
    if weight is None or bias is None or not all(wanted) or len(shape) != 1 or x.dtype not in HALF:
        return None
    width = shape[0]
    if width > WIDEST or not x.is_contiguous():
        return None
    gradient = gradient.contiguous()
    rows = x.numel() // width
    block = triton.next_power_of_2(width)  # columns of a tile: Triton's ranges are powers of 2
    tile_rows = max(1, TILE // block)
    programs = min(MOST_PROGRAMS, triton.cdiv(rows, tile_rows))  # no more than there are tiles

    x_gradient = torch.empty_like(x)
    weight_gradient = torch.empty_like(weight)
    bias_gradient = torch.empty_like(bias)
    sums = torch.empty(2, programs, width, dtype=torch.float32, device=x.device)  # of each program: weight, bias
    _backward_of_rows[(programs,)](
        gradient, x, weight, mean, rstd, x_gradient, sums, rows, programs,
        WIDTH=width, BLOCK=block, TILE_ROWS=tile_rows,
    )  # fmt: skip
    _add_programs[(triton.cdiv(width, COLUMNS),)](
        sums, weight_gradient, bias_gradient, programs,
        WIDTH=width, COLUMNS=COLUMNS, PROGRAMS=triton.next_power_of_2(MOST_PROGRAMS),
    )  # fmt: skip
    return x_gradient, weight_gradient, bias_gradient


if triton is not None:
    # Triton compiles a kernel anew for some values of its integer arguments, such as multiples of 16. For the arguments
    # that depend on the batch's shape this is switched off, because nothing may be compiled while a graph is captured.
    @triton.jit(do_not_specialize=["rows", "programs"])
    def _backward_of_rows(
        gradient, x, weight, mean, rstd, x_gradient, sums, rows, programs,
        WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILE_ROWS: tl.constexpr,
    ):  # fmt: skip
        """Write the gradient of x, and the sums over each program's rows of the gradients of weight and bias.

        With n = (x - mean) * rstd and s = gradient * weight, the gradient of x is (s - mean(s) - n * mean(s * n)) *
        rstd, with means over a row. The sums over rows are those of gradient * n (of the weight) and of gradient (of
        the bias). A tile has TILE_ROWS rows; program p takes the tiles number p, p + programs, p + 2 * programs, ...

        Arguments before `rows` point to the tensors of layer_norm_backward: gradient, x, x_gradient (rows, WIDTH),
        weight (WIDTH,), mean, rstd (rows,), and sums (2, programs, WIDTH), of weight and bias. BLOCK: the next power of
        2 from WIDTH on; columns beyond WIDTH are masked.
        """
        program = tl.program_id(0)
        columns = tl.arange(0, BLOCK)
        is_column = columns < WIDTH
        w = tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32)
        weight_sum = tl.zeros((BLOCK,), dtype=tl.float32)
        bias_sum = tl.zeros((BLOCK,), dtype=tl.float32)
        for first_row in range(program * TILE_ROWS, rows, programs * TILE_ROWS):
            # one tile, (TILE_ROWS, BLOCK)
            row = first_row + tl.arange(0, TILE_ROWS)
            is_row = row < rows
            offsets = row[:, None] * WIDTH + columns[None, :]
            is_element = is_row[:, None] & is_column[None, :]
            g = tl.load(gradient + offsets, mask=is_element, other=0.0).to(tl.float32)
            values = tl.load(x + offsets, mask=is_element, other=0.0).to(tl.float32)
            m = tl.load(mean + row, mask=is_row, other=0.0)
            r = tl.load(rstd + row, mask=is_row, other=0.0)

            n = tl.where(is_element, (values - m[:, None]) * r[:, None], 0.0)
            s = g * w[None, :]
            mean_of_s_n = tl.sum(s * n, axis=1) / WIDTH
            mean_of_s = tl.sum(s, axis=1) / WIDTH
            result = (s - mean_of_s[:, None] - n * mean_of_s_n[:, None]) * r[:, None]
            tl.store(x_gradient + offsets, result.to(x_gradient.dtype.element_ty), mask=is_element)
            weight_sum += tl.sum(g * n, axis=0)
            bias_sum += tl.sum(g, axis=0)
        tl.store(sums + program * WIDTH + columns, weight_sum, mask=is_column)  # sums[0, program]
        tl.store(sums + (programs + program) * WIDTH + columns, bias_sum, mask=is_column)  # sums[1, program]

    @triton.jit(do_not_specialize=["programs"])
    def _add_programs(
        sums, weight_gradient, bias_gradient, programs,
        WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PROGRAMS: tl.constexpr,
    ):  # fmt: skip
        """Write the gradients of weight and bias, (WIDTH,): the totals of the sums (2, programs, WIDTH).

        sums: what the `programs` programs of _backward_of_rows have written. Each program of this kernel adds up
        COLUMNS columns of them. PROGRAMS: a power of 2, which Triton's ranges must be, at least `programs`; it is the
        same for all batches, so that the kernel is compiled once.
        """
        columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        is_column = columns < WIDTH
        program = tl.arange(0, PROGRAMS)
        is_element = (program < programs)[:, None] & is_column[None, :]
        offsets = program[:, None] * WIDTH + columns[None, :]
        of_weight = tl.sum(tl.load(sums + offsets, mask=is_element, other=0.0), axis=0)
        of_bias = tl.sum(tl.load(sums + programs * WIDTH + offsets, mask=is_element, other=0.0), axis=0)
        tl.store(weight_gradient + columns, of_weight.to(weight_gradient.dtype.element_ty), mask=is_column)
        tl.store(bias_gradient + columns, of_bias.to(bias_gradient.dtype.element_ty), mask=is_column)
