"""Share of each residual sum that comes from its branch: Admin's explanation of unstable training."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.random import fork_rng

from ..profile import residuals
from ..slots import Residual
from .base import TokenSums, Values, over_ranks, register_probe


@register_probe("branch_dependency")
class BranchDependency(TokenSums):
    """Var(f) / Var(x + f) over tokens and features (Liu et al. 2020), of shortcut x and branch f; a number from 0 on.

    f has passed its dropout. Both include the factors by which the method multiplies shortcut and branch: the probe
    takes f and x + f from Residual.branch_and_sum, or from a method of that name of another merge. Addresses: of
    branches, "decoder.18.ffn". In the log: the mean over layers, as "decoder.ffn".
    """

    def hooks(self, masks: dict[str, Tensor]) -> Iterator:
        for site, residual in residuals(self.model):
            yield residual.register_forward_hook(partial(self._visit, str(site), masks[site.stack]))

    @torch.no_grad()  # a trained factor would keep the graph alive
    def _visit(self, address: str, mask: Tensor, residual: nn.Module, inputs: tuple, _merged: Tensor) -> None:
        """Forward hook of a residual merge: add up count, sums and sums of squares of branch and merged stream.

        mask (B, T): True at tokens; inputs: shortcut and branch.
        """
        # a function of the class, which any module can be given and which calls no hook
        branch_and_sum: Any = getattr(type(residual), "branch_and_sum", Residual.branch_and_sum)
        at_tokens = [tensor.detach()[mask] for tensor in inputs]
        # a merge that draws random numbers must not advance the training's generators
        with fork_rng([inputs[0].device] if inputs[0].is_cuda else []):
            branch, merged = branch_and_sum(residual, *at_tokens)
        sums = []
        for tensor in (branch, merged):
            sums.append(tensor.double().pow(1).sum())
            sums.append(tensor.double().pow(2).sum())
        self.add(address, branch.numel(), *sums)

    def values(self) -> Values:
        ratios = {}
        for address, sums in over_ranks(self.sums).items():
            count, branch_sum, branch_squares, merged_sum, merged_squares = sums
            branch = _variance(count, branch_sum, branch_squares)
            merged = _variance(count, merged_sum, merged_squares)
            ratios[address] = branch / merged if merged > 0 else float("nan")
        return ratios


def _variance(count: float, total: float, squares: float) -> float:
    """Return the variance of `count` numbers by their sum and the sum of their squares; NaN of none."""
    if not count:
        return float("nan")
    return squares / count - (total / count) ** 2
