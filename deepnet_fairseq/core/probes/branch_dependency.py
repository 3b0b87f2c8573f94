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
    """Var(f) / Var(x + f) over tokens and features (Liu et al. 2020), f behind its dropout; a number from 0 on.

    x and f are taken as they are summed: with the factors that the method gives to shortcut and branch. In a stream
    wider than the branches they are the result of the residual module's `added`, or else the whole stream. Addresses:
    of branches, "decoder.18.ffn". In the log: the mean over layers, as "decoder.ffn".
    """

    def hooks(self, masks: dict[str, Tensor]) -> Iterator:
        for site, residual in residuals(self.model):
            yield residual.register_forward_hook(partial(self._visit, str(site), masks[site.stack]))

    @torch.no_grad()  # a trained factor would keep the graph alive
    def _visit(self, address: str, mask: Tensor, residual: nn.Module, inputs: tuple, _merged: Tensor) -> None:
        added: Any = getattr(type(residual), "branch_and_sum", Residual.branch_and_sum)  # which calls no hook of ours
        # a merge that draws random numbers must not advance the training's generators
        with fork_rng([inputs[0].device] if inputs[0].is_cuda else []):
            branch, merged = added(residual, *(part.detach()[mask] for part in inputs))
        sums = []
        for part in (branch, merged):
            sums.append(part.double().pow(1).sum())
            sums.append(part.double().pow(2).sum())
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
    if not count:
        return float("nan")
    return squares / count - (total / count) ** 2
