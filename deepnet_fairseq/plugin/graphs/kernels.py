"""Two faster kernels for half precision inside graphs: the gradients of biases and of LayerNorms.

Both are sums over the rows of a matrix, for which torch has slow kernels: on an H200, for 4,000 rows of width 512, a
bias took 10.4 us where a product with a row of ones takes 5.6, and the gradients of a LayerNorm 18.5 us in two kernels.
The model is left as it is: a mode replaces the operators while a graph is captured. Sums are in float32 as torch's are,
in another order. Without Triton, which comes with torch's builds for CUDA, LayerNorms stay torch's.
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
# The gradient of a LayerNorm takes two kernels, in Triton's words with several programs each. In the first one every
# program takes some of the rows and adds them up; the second one adds up the sums of these programs.
MOST_PROGRAMS = 264  # programs of the first kernel: two for each of the 132 multiprocessors of an H100
TILE = 2048  # numbers that a program of the first kernel reads at a time: as many rows as fit, at least one
WIDEST = 2048  # width of the widest LayerNorm that is replaced: one row has to fit into a tile
COLUMNS = 32  # columns that a program of the second kernel adds up


class FasterKernels(TorchDispatchMode):
    """Mode that replaces two operators of the backward pass, where their arguments allow it.

    most_rows: rows of the largest matrix of activations; one that has more is left to torch.
    """

    def __init__(self, most_rows: int, device: torch.device):
        super().__init__()
        # made here, outside of a capture: else the first graph would fill it in each replay, and others would read it
        self.ones = {kind: torch.ones(1, most_rows, dtype=kind, device=device) for kind in HALF}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.sum.dim_IntList and not kwargs:  # the gradient of a bias
            summed = self.sum_of_rows(*args)
            if summed is not None:
                return summed
        if func is torch.ops.aten.native_layer_norm_backward.default and triton is not None:
            gradients = layer_norm_backward(*args)
            if gradients is not None:
                return gradients
        return func(*args, **kwargs)

    def sum_of_rows(self, x: Tensor, dims: list[int], keepdim: bool = False) -> Tensor | None:
        """Return the sum of a matrix (N, C) in half precision over its rows; None for a sum that is left to torch.

        The arguments are those of aten's sum.
        """
        if list(dims) != [0] or x.dim() != 2 or x.dtype not in HALF:
            return None
        rows = x.size(0)
        ones = self.ones[x.dtype]
        if rows > ones.size(1):
            return None
        summed = ones[:, :rows] @ x
        return summed if keepdim else summed[0]


def layer_norm_backward(
    gradient: Tensor, x: Tensor, shape: list[int], mean: Tensor, rstd: Tensor,
    weight: Tensor | None, bias: Tensor | None, wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor] | None:  # fmt: skip
    """Return the gradients of x, weight and bias of a LayerNorm; None where aten's operator has to compute them.

    The arguments are those of aten's native_layer_norm_backward. gradient: of the output; shape: of what is normalised;
    mean, rstd: of each row of x, rstd = 1 / sqrt(variance + eps); wanted: which of the three gradients are needed.
    """
    if weight is None or bias is None or not all(wanted) or len(shape) != 1 or x.dtype not in HALF:
        return None
    width = shape[0]
    if width > WIDEST or not x.is_contiguous():
        return None
    gradient = gradient.contiguous()
    rows = x.numel() // width
    block = triton.next_power_of_2(width)  # Triton's ranges are powers of 2
    tile_rows = max(1, TILE // block)
    programs = min(MOST_PROGRAMS, triton.cdiv(rows, tile_rows))

    x_gradient = torch.empty_like(x)
    weight_gradient = torch.empty_like(weight)
    bias_gradient = torch.empty_like(bias)
    sums = torch.empty(2, programs, width, dtype=torch.float32, device=x.device)
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
    # Triton compiles a kernel anew for some values of its integers, such as multiples of 16. Those that depend on the
    # batch's shape are exempt, because nothing may be compiled while a graph is captured.
    @triton.jit(do_not_specialize=["rows", "programs"])
    def _backward_of_rows(
        gradient, x, weight, mean, rstd, x_gradient, sums, rows, programs,
        WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILE_ROWS: tl.constexpr,
    ):  # fmt: skip
        """Write the gradient of x, and each program's sums for weight and bias, sums (2, programs, WIDTH).

        With n = (x - mean) rstd and s = gradient weight, row by row: gradient of x = (s - mean(s) - n mean(s n)) rstd,
        and the sums are those of gradient n (weight) and of gradient (bias). Program p takes the tiles of TILE_ROWS
        rows number p, p + programs, p + 2 programs, ...
        """
        program = tl.program_id(0)
        columns = tl.arange(0, BLOCK)
        inside = columns < WIDTH
        w = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
        weight_sum = tl.zeros((BLOCK,), dtype=tl.float32)
        bias_sum = tl.zeros((BLOCK,), dtype=tl.float32)
        for first in range(program * TILE_ROWS, rows, programs * TILE_ROWS):
            row = first + tl.arange(0, TILE_ROWS)
            present = row < rows
            places = row[:, None] * WIDTH + columns[None, :]
            known = present[:, None] & inside[None, :]  # places that hold numbers of x
            g = tl.load(gradient + places, mask=known, other=0.0).to(tl.float32)
            values = tl.load(x + places, mask=known, other=0.0).to(tl.float32)
            m = tl.load(mean + row, mask=present, other=0.0)
            r = tl.load(rstd + row, mask=present, other=0.0)
            normed = tl.where(known, (values - m[:, None]) * r[:, None], 0.0)
            scaled = g * w[None, :]
            mean_of_product = tl.sum(scaled * normed, axis=1) / WIDTH
            mean_of_scaled = tl.sum(scaled, axis=1) / WIDTH
            result = (scaled - mean_of_scaled[:, None] - normed * mean_of_product[:, None]) * r[:, None]
            tl.store(x_gradient + places, result.to(x_gradient.dtype.element_ty), mask=known)
            weight_sum += tl.sum(g * normed, axis=0)
            bias_sum += tl.sum(g, axis=0)
        tl.store(sums + program * WIDTH + columns, weight_sum, mask=inside)
        tl.store(sums + (programs + program) * WIDTH + columns, bias_sum, mask=inside)

    @triton.jit(do_not_specialize=["programs"])
    def _add_programs(
        sums, weight_gradient, bias_gradient, programs,
        WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PROGRAMS: tl.constexpr,
    ):  # fmt: skip
        """Add up the sums of all programs, (2, programs, WIDTH), to the gradients of weight and bias, (WIDTH,).

        PROGRAMS: the next power of 2 from MOST_PROGRAMS on, at least `programs`.
        """
        columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = columns < WIDTH
        program = tl.arange(0, PROGRAMS)
        known = (program < programs)[:, None] & inside[None, :]
        places = program[:, None] * WIDTH + columns[None, :]
        of_weight = tl.sum(tl.load(sums + places, mask=known, other=0.0), axis=0)
        of_bias = tl.sum(tl.load(sums + programs * WIDTH + places, mask=known, other=0.0), axis=0)
        tl.store(weight_gradient + columns, of_weight.to(weight_gradient.dtype.element_ty), mask=inside)
        tl.store(bias_gradient + columns, of_bias.to(bias_gradient.dtype.element_ty), mask=inside)
