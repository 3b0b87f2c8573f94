"""Sites and weights inside a model, and the modules that several methods put into the slots of the one equation.

Every residual branch is a Site, every weight matrix of a branch has a role. B sentences, T tokens, C width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

BRANCHES = ("self_attn", "encoder_attn", "ffn")  # of a layer with cross-attention; the others lack encoder_attn
# fairseq's own names, so that a checkpoint of its `transformer` fits
NORM_NAMES = {"self_attn": "self_attn_layer_norm", "encoder_attn": "encoder_attn_layer_norm", "ffn": "final_layer_norm"}
SUBLAYERS = {norm: sublayer for sublayer, norm in NORM_NAMES.items()}  # by the name of their LayerNorm


@dataclass(frozen=True)
class Site:
    """One residual branch.

    stack: "encoder" or "decoder"; layer: 1-based depth inside the stack, the l of the papers;
    sublayer: "self_attn", "encoder_attn" or "ffn"; dim: width of the branch, C; num_heads: of the stack's attention.
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

    role: "q", "k", "v", "out", "fc1" or "fc2"; source_dim: width of the input of the branch's keys and values.
    """

    site: Site
    role: str
    linear: nn.Linear
    source_dim: int


Scale = float | Tensor  # a number, or one a feature (C,)


class FullPrecision(nn.Module):
    """Module whose own parameters and buffers stay float32 when the model is cast to fp16 or bf16.

    It is for numbers that half precision would ruin: their gradient is a sum over all tokens, their updates are small
    against their value, and under --memory-efficient-fp16 nothing else keeps a float32 copy.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        def keep(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if moved.dtype in (torch.float16, torch.bfloat16):
                return tensor.to(moved.device, torch.float32)  # from the original: `moved` has lost digits
            return moved

        if recurse:
            for child in self.children():
                child._apply(fn)
        return super()._apply(keep, recurse=False)


class EmptySlot(nn.Identity):
    """The identity, in a slot that a method leaves empty."""


EMPTY = EmptySlot()  # one for all slots: it has no state


def or_empty(module: nn.Module | None) -> nn.Module:
    """Return the module of a slot, the identity for None."""
    return EMPTY if module is None else module


class Residual(nn.Module):
    """Residual merge x + f, and the base of other merges; a module, so that hooks find every merge at the same place.

    A subclass that computes a x + b f defines `forward` and `scales`, which returns a and b in the trained model, each
    a number or (C,): export folds them into nearby weights. One with `forward` alone does not fold (knows_scales).
    """

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """Merge shortcut x and branch f, (.., C) each, into (.., C)."""
        return x + f

    def scales(self) -> tuple[Scale, Scale]:
        """Return the factors of x and f."""
        return 1.0, 1.0

    def added(self, x: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return the branch as it is summed, and the sum, for shortcut x and branch f, (.., C) each."""
        return self.forward(torch.zeros_like(x), f), self.forward(x, f)


def knows_scales(merge: nn.Module) -> bool:
    """Return whether a merge is an a x + b f that tells a and b by `scales`.

    A subclass of Residual that computes something else than x + f, and does not say what, has inherited the wrong ones.
    """
    kind: Any = type(merge)
    scales = getattr(kind, "scales", None)
    inherited = scales is Residual.scales and kind.forward is not Residual.forward
    return scales is not None and not inherited


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
    """Residual merge omega o x + f with a vector omega (C,), kept in float32; computed in the type of x."""

    def __init__(self, dim: int, value: float = 1.0, trainable: bool = True):
        super().__init__()
        self.omega = nn.Parameter(torch.full((dim,), value), requires_grad=trainable)

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        return torch.addcmul(f, x, self.omega.to(x.dtype))

    def scales(self) -> tuple[Scale, Scale]:
        return self.omega, 1.0


class Copies(nn.Module):
    """Copy the embedding to n streams side by side, each times its own of n `factors`: (.., C) -> (.., n C)."""

    def __init__(self, *factors: float):
        super().__init__()
        self.factors = factors

    def forward(self, embedding: Tensor) -> Tensor:
        copies = [embedding if factor == 1 else factor * embedding for factor in self.factors]
        return torch.cat(copies, dim=-1)


class TwoSums(nn.Module):
    """Merge of a branch f (.., C) with streams x and y side by side (.., 2C): LN(x + a f) and y + b f, (.., 2C)."""

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

    def added(self, streams: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return branch and sum as Residual.added does, for the sum that the LayerNorm reads."""
        x, _y = streams.chunk(2, -1)
        return self.a * f, torch.add(x, f, alpha=self.a)


class Multiply(FullPrecision):
    """Product s * x with a learned number s, kept in float32; x of any shape and type -> same."""

    def __init__(self, value: float = 1.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(value))

    def forward(self, x: Tensor) -> Tensor:
        return multiply(x, self.scale)


class Shift(FullPrecision):
    """Difference x - b with a learned number b, 0 at first, kept in float32; x of any shape and type -> same."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        return _Difference.apply(x, self.shift)


class ByRole(nn.ModuleDict):
    """Apply to projections x (.., h, d) the module of their role; return those of other roles unchanged."""

    def forward(self, x: Tensor, role: str) -> Tensor:
        return self[role](x) if role in self else x


def multiply(x: Tensor, scale: Tensor, straight: bool = False) -> Tensor:
    """Compute s x of x (..) in any type and s () in float32, in the type of x; accumulate the gradient of s in float32.

    straight: pass the gradient of s x on to x unchanged, not times s.
    """
    return _Product.apply(x, scale, straight)


def _in_type(x: Tensor, function: Callable[..., Tensor], number: Tensor) -> Tensor:
    """Compute function(x, number) in float32 and return it in the type of x, by one kernel; number () in float32."""
    return function(x, number.view(1), out=torch.empty_like(x))


class _Product(torch.autograd.Function):
    """Product of x and s with the gradients that `multiply` describes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, straight: bool) -> Tensor:
        ctx.save_for_backward(x, scale)
        ctx.straight = straight
        return _in_type(x, torch.mul, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, scale = ctx.saved_tensors
        products = torch.addcmul(scale.new_zeros(1), grad, x)  # in float32, the zero's type: float16 ends at 65504
        grad_of_x = grad if ctx.straight else _in_type(grad, torch.mul, scale)
        return grad_of_x, products.sum(), None


class _Difference(torch.autograd.Function):
    """Autograd function x - b, x (..) in any type, b () in float32; accumulates the gradient of b in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor) -> Tensor:
        ctx.dtype = shift.dtype
        return _in_type(x, torch.sub, shift)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, -grad.sum(dtype=ctx.dtype)
