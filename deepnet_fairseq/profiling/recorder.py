"""Hooks on every residual merge of a model; attached from outside, removed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..transformer.site import Site
from ..transformer.slots import Residual


def residuals(model: nn.Module) -> Iterator[tuple[Site, Residual]]:
    """Every branch with the module that merges it into the residual stream, in forward order of each stack."""
    for stack in model.stacks().values():
        for layer in stack.layers:
            for sublayer, site in layer.sites.items():
                yield site, layer.residual[sublayer]


@contextmanager
def watching(model: nn.Module, visit: Callable[[Site, Residual, Tensor, Tensor], None]):
    """Inside the context visit(site, residual, x, f) is called just before each merge of shortcut x and branch f."""

    def before_merge(site, residual, inputs):
        visit(site, residual, *inputs)

    handles = [r.register_forward_pre_hook(partial(before_merge, site)) for site, r in residuals(model)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def variance(tensor: Tensor) -> float:
    """Population variance over all elements, padding included, in float32."""
    return tensor.detach().float().var(unbiased=False).item()


@dataclass(frozen=True)
class BranchVariance:
    """Variance of what enters one merge: the shortcut x, and the branch f behind its dropout."""

    shortcut: float
    branch: float


@contextmanager
def recording(model: nn.Module):
    """Gives a dict Site -> BranchVariance that each forward pass inside the context fills anew, in forward order."""
    found: dict[Site, BranchVariance] = {}

    def visit(site, residual, x, f):
        found[site] = BranchVariance(variance(x), variance(f))

    with watching(model, visit):
        yield found


@contextmanager
def in_mode(model: nn.Module, training: bool):
    """Training or evaluation mode inside the context; then each module's own, as it was."""
    modes = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def aside(model: nn.Module, seed: int):
    """For a forward pass without trace: inside, training mode, no gradients, dropout drawn from `seed`.

    Then all is as before, the state of torch's generators too.
    """
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(seed)
        with in_mode(model, training=True):
            yield
