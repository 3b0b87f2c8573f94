"""Hooks on every residual merge of a model, and Admin's omegas from one forward pass.

methods/admin.py has the equation and where it comes from. Hooks are attached from outside and removed at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from ..transformer.slots import Residual, Site


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


class SequentialOmega:
    """Sets each branch's omega from what the branches before it gave, in the same pass; for `watching`."""

    def __init__(self):
        self.omegas: dict[Site, float] = {}
        self.running: dict[str, float] = {}

    def __call__(self, site, residual, x, f) -> None:
        """Shortcut x and branch f, (B, T, C) each, are about to be merged by `residual`, a LearnedShortcut."""
        omega = self.omegas[site] = self.running.get(site.stack, 1.0)
        residual.omega.fill_(omega)
        self.running[site.stack] = math.sqrt(variance(residual.omega * x) + variance(f))


def profile_omegas(model: nn.Module, net_input: dict, seed: int) -> dict[Site, float]:
    """One omega a branch of an Admin model, from one batch (`net_input` of a fairseq sample), dropout from `seed`.

    In forward order, the encoder's first. The model's weights, omegas, modes and the generators of random numbers are
    as before afterwards.
    """
    sequential = SequentialOmega()
    with aside(model, seed), watching(model, sequential):
        before = {residual: residual.omega.clone() for _, residual in residuals(model)}
        try:
            model(**net_input)
        finally:
            for residual, omega in before.items():
                residual.omega.copy_(omega)
    return sequential.omegas


@torch.no_grad()
def apply_omegas(model: nn.Module, omegas: list[float]) -> None:
    """Fills the omegas (C,) of all branches, given in forward order, encoder first; ValueError for another number."""
    for (_, residual), omega in zip(residuals(model), omegas, strict=True):
        residual.omega.fill_(omega)
