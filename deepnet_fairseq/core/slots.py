"""Sites and weights inside a model, and modules for the slots of layers and stacks, most of them for several methods.

A site is one residual branch: one sublayer (self-attention, cross-attention or feed-forward) of one layer of one stack
(encoder or decoder). A slot is a place in the equation of a branch, or at the beginning or end of a stack, where a
method may put a module of its own; methods/base.py has the equation and all slots. Shapes: B sentences, T tokens, C
features of a branch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

BRANCHES = ("self_attn", "encoder_attn", "ffn")  # in forward order; layers without cross-attention lack encoder_attn
# branch -> name of its LayerNorm in a layer: fairseq's own, so that a checkpoint of its `transformer` fits
NORM_NAMES = {"self_attn": "self_attn_layer_norm", "encoder_attn": "encoder_attn_layer_norm", "ffn": "final_layer_norm"}
SUBLAYER_OF_NORM = {norm: sublayer for sublayer, norm in NORM_NAMES.items()}


@dataclass(frozen=True)
class Site:
    """One residual branch: where it stands in the model, and its widths.

    stack: "encoder" or "decoder"; layer: number of the layer in its stack, from 1, the l of the papers; sublayer: one
    of BRANCHES; dim: width of the branch in features, C; num_heads: heads of the stack's attentions, also where the
    branch is feed-forward.
    """

    stack: str
    layer: int
    sublayer: str
    dim: int
    num_heads: int

    def __str__(self) -> str:
        return f"{self.stack}.{self.layer}.{self.sublayer}"


@dataclass(frozen=True)
class Weight:
    """One weight matrix of a branch.

    role: what the branch uses it for, "q", "k", "v" or "out" in attention, "fc1" or "fc2" in feed-forward; linear: the
    module that holds it; source_dim: width of what the branch's keys and values are computed from, the encoder's in
    cross-attention, else C.
    """

    site: Site
    role: str
    linear: nn.Linear
    source_dim: int


Scale = float | Tensor  # one number for all features, or a vector (C,) with one for each


class FullPrecision(nn.Module):
    """Module whose own parameters and buffers stay float32 when the model is cast to fp16 or bf16.

    The class is for numbers that half precision would ruin: their gradient is a sum over all tokens, their updates are
    small against their value, and under --memory-efficient-fp16 nothing else keeps a float32 copy.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """Apply `fn` to all tensors, as nn.Module does for `half`, `to` and the like; undo a cast to half precision.

        Modules inside this one are cast as usual.
        """

        def move_but_keep_float32(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if moved.dtype in (torch.float16, torch.bfloat16):
                return tensor.to(moved.device, torch.float32)  # from the original: `moved` has lost digits
            return moved

        if recurse:
            for child in self.children():
                child._apply(fn)
        return super()._apply(move_but_keep_float32, recurse=False)


class EmptySlot(nn.Identity):
    """The identity, in a slot that a method leaves empty."""


EMPTY = EmptySlot()  # a single module serves all empty slots, because it has no state


def or_empty(module: nn.Module | None) -> nn.Module:
    """Return what a method gave for a slot, or the identity if it gave None."""
    return EMPTY if module is None else module


class Residual(nn.Module):
    """Residual merge x + f, and the base of other merges; a module, so that hooks find every merge at the same place.

    A subclass that computes a x + b f defines `forward` and `scales`, which returns a and b as they are in the trained
    model; `deepnet export` multiplies them into neighbouring weights. A model with a merge that defines `forward` alone
    cannot be exported (see knows_scales).
    """

    def __init_subclass__(cls, **given: Any) -> None:
        """Accept a method called `added`, the name of `branch_and_sum` until 0.1, in the merges of a --user-dir."""
        super().__init_subclass__(**given)
        if "added" in vars(cls) and "branch_and_sum" not in vars(cls):
            cls.branch_and_sum = vars(cls)["added"]  # type: ignore[method-assign]

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """Merge shortcut x and branch f, (.., C) each, into (.., C)."""
        return x + f

    def scales(self) -> tuple[Scale, Scale]:
        """Return the factors a of x and b of f, each a number or a vector (C,)."""
        return 1.0, 1.0

    def branch_and_sum(self, x: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return b f, the branch as it enters the sum, and a x + b f, for shortcut x and branch f, (.., C) each.

        Probes compare the two. A merge that is no weighted sum overrides this method.
        """
        return self.forward(torch.zeros_like(x), f), self.forward(x, f)


def knows_scales(merge: nn.Module) -> bool:
    """Tell whether a residual merge computes a x + b f, with the a and b that its method `scales` returns.

    A subclass of Residual that overrides `forward` alone has inherited the 1 and 1 of x + f, which need not be its own.
    """
    merge_class: Any = type(merge)
    scales = getattr(merge_class, "scales", None)
    if scales is None:
        return False
    overrides_forward_alone = scales is Residual.scales and merge_class.forward is not Residual.forward
    return not overrides_forward_alone


class ConstantShortcut(Residual):
    """Residual merge alpha * x + f, (B, T, C) each, as one operation; alpha a constant."""

    def __init__(self, alpha: float):
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        return torch.add(f, x, alpha=self.alpha)

    def scales(self) -> tuple[Scale, Scale]:
        return self.alpha, 1.0

    def extra_repr(self) -> str:
        return f"alpha={self.alpha:.6g}"


class LearnedShortcut(FullPrecision, Residual):
    """Residual merge omega o x + f with a vector omega (C,), kept in float32; computed in the dtype of x.

    dim: C; value: what all elements of omega are at first; trainable: whether the optimiser changes omega.
    """

    def __init__(self, dim: int, value: float = 1.0, trainable: bool = True):
        super().__init__()
        self.omega = nn.Parameter(torch.full((dim,), value), requires_grad=trainable)

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        return torch.addcmul(f, x, self.omega.to(x.dtype))

    def scales(self) -> tuple[Scale, Scale]:
        return self.omega, 1.0


class Copies(nn.Module):
    """Copy the embedding to n residual streams side by side, (.., C) -> (.., n C).

    factors: n numbers; the embedding is multiplied by the first in the first copy, and so on.
    """

    def __init__(self, *factors: float):
        super().__init__()
        self.factors = factors

    def forward(self, embedding: Tensor) -> Tensor:
        copies = [embedding if factor == 1 else factor * embedding for factor in self.factors]
        return torch.cat(copies, dim=-1)


class TwoSums(nn.Module):
    """Residual merge of a branch f (.., C) with two streams x and y side by side, (.., 2C) -> LN(x + a f), y + b f.

    dim: C; a, b: constants.
    """

    def __init__(self, dim: int, a: float, b: float):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.a = a
        self.b = b

    def forward(self, streams: Tensor, f: Tensor) -> Tensor:
        x, y = streams.chunk(2, -1)
        normed = self.norm(torch.add(x, f, alpha=self.a))
        plain = torch.add(y, f, alpha=self.b)
        return torch.cat([normed, plain], dim=-1)

    def branch_and_sum(self, streams: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return a f and x + a f, which the LayerNorm reads; see Residual.branch_and_sum. Probes leave out stream y."""
        x, _y = streams.chunk(2, -1)
        return self.a * f, torch.add(x, f, alpha=self.a)


class Multiply(FullPrecision):
    """Product s * x with a learned number s, kept in float32; x of any shape and dtype -> same. value: s at first."""

    def __init__(self, value: float = 1.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(value))

    def forward(self, x: Tensor) -> Tensor:
        return multiply(x, self.scale)


class Shift(FullPrecision):
    """Difference x - b with a learned number b, 0 at first, kept in float32; x of any shape and dtype -> same."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        return _Difference.apply(x, self.shift)


class ByRole(nn.ModuleDict):
    """Module for the slot `heads`, made of one module each for some of queries "q", keys "k" and values "v".

    It is called as by_role(x, "q") with projections x (.., h, d), h heads of d features, and returns the same shape; x
    of a role that has no module is returned unchanged.
    """

    def forward(self, x: Tensor, role: str) -> Tensor:
        return self[role](x) if role in self else x


def multiply(x: Tensor, scale: Tensor, straight: bool = False) -> Tensor:
    """Return scale * x, x of any shape and dtype -> same, scale () in float32; differentiable.

    The gradient of `scale` is a sum over all of x, which is computed in float32 too. straight: pass the gradient of the
    product on to x as it is (straight-through), instead of times `scale`.
    """
    return _Product.apply(x, scale, straight)


def _in_dtype_of(x: Tensor, function: Callable[..., Tensor], number: Tensor) -> Tensor:
    """Compute function(x, number) in float32 and return it in the dtype of x; function: torch.mul or torch.sub.

    x may have any shape and dtype, number () is float32; for x in float64 torch computes in float64. One kernel does
    it: a number in a vector of one element makes torch compute in float32, which a tensor without dimensions would not,
    and `out` makes it store the dtype of x.
    """
    return function(x, number.view(1), out=torch.empty_like(x))


class _Product(torch.autograd.Function):
    """Autograd function of `multiply`: x (..), scale (), straight -> scale * x, with the gradients described there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, straight: bool) -> Tensor:
        ctx.save_for_backward(x, scale)
        ctx.straight = straight
        return _in_dtype_of(x, torch.mul, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, scale = ctx.saved_tensors
        # added to a zero in float32, the products grad * x are float32 too; float16 would overflow above 65504
        products = torch.addcmul(scale.new_zeros(1), grad, x)
        grad_of_x = grad if ctx.straight else _in_dtype_of(grad, torch.mul, scale)
        return grad_of_x, products.sum(), None


class _Difference(torch.autograd.Function):
    """Autograd function x - b, x (..) in any dtype, b () in float32; accumulates the gradient of b in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor) -> Tensor:
        ctx.dtype = shift.dtype
        return _in_dtype_of(x, torch.sub, shift)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, -grad.sum(dtype=ctx.dtype)
