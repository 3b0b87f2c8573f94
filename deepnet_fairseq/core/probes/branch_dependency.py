"""Share of each residual sum that comes from its branch: Admin's explanation of unstable training.

An address names a part of the model (base.py).
"""

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
    """Var(f) / Var(x + f) of shortcut x and branch f, over tokens and features (Liu et al. 2020); a ratio, 0 or more.

    f is the branch's output after its dropout. Both x and f include the factors by which the method multiplies them.
    Addresses: of branches, "decoder.18.ffn". In the log: the mean over layers, as "decoder.ffn".
    """

    def hooks(self, masks: dict[str, Tensor]) -> Iterator:
        for site, residual in residuals(self.model):
            add_sums = partial(self._add_sums, str(site), masks[site.stack])
            yield residual.register_forward_hook(add_sums)

    @torch.no_grad()  # a trained factor would keep the graph alive
    def _add_sums(self, address: str, mask: Tensor, residual: nn.Module, inputs: tuple, _merged: Tensor) -> None:
        """Forward hook of a residual merge: add what the variances of f and of x + f are computed from.

        address: of the branch; mask (B, T): True at tokens; residual: the merge; inputs: x and f, (B, T, C) each (x may
        be wider, see Method.stream_width). Five numbers are added: how many elements f has, sum and sum of squares of
        f, sum and sum of squares of x + f.
        """
        # f and x + f, with the method's factors, by the merge's own `branch_and_sum`, or by that of Residual for a
        # merge without one; as a function of the class it can be given any module
        branch_and_sum: Any = getattr(type(residual), "branch_and_sum", Residual.branch_and_sum)
        at_tokens = [tensor.detach()[mask] for tensor in inputs]
        # a merge that draws random numbers must not advance the training's generators
        cuda_devices = [inputs[0].device] if inputs[0].is_cuda else []
        with fork_rng(cuda_devices):
            branch, merged = branch_and_sum(residual, *at_tokens)

        sums = []
        for tensor in (branch, merged):
            numbers = tensor.double()
            sums += [numbers.sum(), numbers.pow(2).sum()]
        self.add(address, branch.numel(), *sums)

    def values(self) -> Values:
        ratios = {}
        for address, sums in over_ranks(self.sums).items():
            count, branch_sum, branch_squares, merged_sum, merged_squares = sums  # as _add_sums adds them
            branch_variance = _variance(count, branch_sum, branch_squares)
            merged_variance = _variance(count, merged_sum, merged_squares)
            ratios[address] = branch_variance / merged_variance if merged_variance > 0 else float("nan")
        return ratios


def _variance(count: float, total: float, total_of_squares: float) -> float:
    """Return the variance of `count` numbers, given their sum and the sum of their squares; NaN if there are none."""
    if not count:  # no rank had a batch that counts
        return float("nan")
    return total_of_squares / count - (total / count) ** 2
