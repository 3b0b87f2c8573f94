"""Several projections of one input as one product; their parameters stay separate, in the model and in checkpoints."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def pack(*linears: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of several projections, one below the other."""
    bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
    return torch.cat([linear.weight for linear in linears]), bias


def watched(*modules: nn.Module) -> bool:
    """Do hooks wait for a call of one of them?"""
    return any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def project(x: Tensor, *linears: nn.Linear) -> Tensor:
    """x (B, T, C) -> the outputs of n linears of equal shape side by side, (B, T, n C')."""
    if watched(*linears):
        return torch.cat([linear(x) for linear in linears], -1)
    if torch.is_autocast_enabled(x.device.type) or not torch.is_grad_enabled():
        return F.linear(x, *pack(*linears))
    biases = [linear.bias for linear in linears if linear.bias is not None]
    return _Project.apply(x, len(linears), *(linear.weight for linear in linears), *biases)


class _Project(torch.autograd.Function):
    """F.linear by the packed weight, which the backward pass packs again: in a deep model the copies would add up."""

    @staticmethod
    def forward(ctx, x: Tensor, count: int, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[:count], parameters[count:]
        ctx.save_for_backward(x, *weights)
        ctx.biased = bool(biases)
        return F.linear(x, torch.cat(weights), torch.cat(biases) if biases else None)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, *weights = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        of_x = F.linear(grad, torch.cat(weights).t()) if ctx.needs_input_grad[0] else None
        of_weights = (rows.t() @ x.flatten(0, -2)).chunk(len(weights))
        of_biases = rows.sum(0).chunk(len(weights)) if ctx.biased else ()
        return of_x, None, *of_weights, *of_biases
