"""What attention and layers are made of: linear maps and dropout; and a fast walk through all of them.

Linear maps wait for their initialisation; several of one input are one product, their parameters separate, in the model
and in checkpoints. Dropout is drawn four numbers at a time on a CPU: torch draws a double for each, a fifth of a
narrow layer's time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

RESOLUTION = 2**16  # probabilities are multiples of 1 / RESOLUTION on a CPU; what is kept is scaled by the exact one


class Dropout(FairseqDropout):
    """fairseq's dropout, with its flags and torch's random generator, from 16 random bits a number on a CPU.

    There p is rounded to a multiple of 2^-16; what is kept is scaled to that, so the mean is exact.
    """

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """x of any shape -> same, each number zero with probability p and else x / (1 - p)."""
        if not x.is_cpu or not self.p or not (self.training or self.apply_during_inference):
            return super().forward(x, inplace)
        return x * noise(x, self.p)


def noise(x: Tensor, p: float) -> Tensor:
    """Shaped like x: 0 with probability p, else 1 / (1 - p)."""
    dropped = round(p * RESOLUTION)
    scale = RESOLUTION / (RESOLUTION - dropped)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device="cpu").random_(-(2**63), None)
    numbers = words.view(torch.int16)[: x.numel()].view(x.shape).to(torch.float32)  # -2^15 to 2^15 - 1
    kept = numbers.add_(RESOLUTION // 2 - dropped + 1).mul_(scale).clamp_(0, scale)
    return kept.to(x.dtype)


class Linear(nn.Linear):
    """nn.Linear whose values are undefined until initialisation.initialize or a checkpoint fills them."""

    def reset_parameters(self) -> None:
        """Left to core/initialisation.py, which visits every parameter and raises on one it does not know."""


def pack(*linears: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Weights (C', C) and biases (C',) of n projections, one below the other: (n C', C), and (n C',) or None."""
    bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
    return torch.cat([linear.weight for linear in linears]), bias


def watched(*modules: nn.Module) -> bool:
    """Do hooks wait for a call of one of them?"""
    return any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def project(x: Tensor, *linears: nn.Linear) -> Tensor:
    """x (B, T, C) -> the outputs of n linears of equal shape side by side, (B, T, n C').

    Their forward hooks are called; RuntimeError for one that wants to change what it sees.
    """
    if torch.is_autocast_enabled(x.device.type) or not torch.is_grad_enabled():
        y = F.linear(x, *pack(*linears))
    else:
        biases = [linear.bias for linear in linears if linear.bias is not None]
        y = _Project.apply(x, len(linears), *(linear.weight for linear in linears), *biases)
    if watched(*linears):
        for linear, part in zip(linears, y.chunk(len(linears), -1), strict=True):
            _tell(linear, x, part)
    return y


def _tell(module: nn.Module, x: Tensor, y: Tensor) -> None:
    """Calls a module's hooks as if it had made y from x. RuntimeError for one that wants to change either."""
    pre, after = module._forward_pre_hooks_with_kwargs, module._forward_hooks_with_kwargs
    changes = [hook(module, (x,), *([{}] if key in pre else [])) for key, hook in module._forward_pre_hooks.items()]
    changes += [hook(module, (x,), *([{}] if key in after else []), y) for key, hook in module._forward_hooks.items()]
    if any(change is not None for change in changes):
        raise RuntimeError("a hook may watch a packed projection, not change it")


class _Project(torch.autograd.Function):
    """F.linear by the packed weight, which the backward pass packs again: in a deep model the copies would add up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[:count], parameters[count:]
        ctx.save_for_backward(x, *weights)
        ctx.biased = bool(biases)
        return F.linear(x, torch.cat(weights), torch.cat(biases) if biases else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        of_x = F.linear(grad, torch.cat(weights).t()) if ctx.needs_input_grad[0] else None
        of_weights = (rows.t() @ x.flatten(0, -2)).chunk(len(weights))
        of_biases = rows.sum(0).chunk(len(weights)) if ctx.biased else ()
        return of_x, None, *of_weights, *of_biases


def submodules(root: nn.Module) -> Iterator[nn.Module]:
    """root and all below it, each module once; nn.Module.modules takes five times as long."""
    seen: set[nn.Module] = set()
    waiting: list[nn.Module | None] = [root]
    while waiting:
        module = waiting.pop()
        if module is not None and module not in seen:
            seen.add(module)
            yield module
            waiting += module._modules.values()
