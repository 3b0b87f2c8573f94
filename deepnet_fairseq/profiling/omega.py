"""Admin's omegas from one forward pass (methods/admin.py has the equation and where it comes from)."""

from __future__ import annotations

import math

import torch
from torch import nn

from ..transformer.site import Site
from .recorder import aside, residuals, variance, watching


class SequentialOmega:
    """Sets each branch's omega from what the branches before it gave, in the same pass; for recorder.watching."""

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
