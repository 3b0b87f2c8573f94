"""Measure the shortcuts of a live module: the merges u = a x + b f of one forward pass.

Among the tensors that modules receive and return, the u that is a x + b f is solved for, where f is the output of a
branch and x a tensor before it. The module only has to run.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...core.slots import Site
from .sources import Factor, RecognisedModel

EXACT, SHARE = 1e-5, 0.01  # of a merge u, and of the smaller of a x and b f, what may be unexplained
LEAST = 1e-4  # of u what that smaller one must be


def merges(module: nn.Module, model: RecognisedModel, inputs: tuple) -> list[Factor]:
    """Return the factors a, b of every branch whose merge u = a x + b f is found in a forward pass.

    inputs: what the module is called with, in evaluation mode. Whatever it raises is raised.
    """
    events, hooks = _Events(model), []
    try:
        for name, part in module.named_modules():
            hooks.append(part.register_forward_pre_hook(events.before, with_kwargs=True))
            hooks.append(part.register_forward_hook(partial(events.after, name)))
        modes = [(part, part.training) for part in module.modules()]
        module.eval()
        try:
            with torch.no_grad():
                module(*inputs)
        finally:
            for part, mode in modes:
                part.training = mode
    finally:
        for hook in hooks:
            hook.remove()
    return events.factors()


class _Events:
    """Tensors (.., C) that modules received and returned, in order, each as one row; where branches end."""

    def __init__(self, model: RecognisedModel):
        last = [m for m in model.matrices if m.weight.role in ("out", "fc2")]
        self.branches = {re.sub(r"\.?\w+$", "", m.name): m.weight.site for m in last}
        self.widths = set(model.widths.values())
        self.rows: list[Tensor] = []
        self.ends: dict[Site, int] = {}
        self.exact = EXACT

    def take(self, given: Any) -> int | None:
        """Keep the tensors that may be in the stream; return the number of the first."""
        first = None
        for value in given if isinstance(given, (tuple, list)) else (given,):
            if torch.is_tensor(value) and value.is_floating_point() and value.dim() and value.size(-1) in self.widths:
                first = len(self.rows) if first is None else first
                self.rows.append(value.detach().double().flatten())
                self.exact = max(self.exact, 4 * torch.finfo(value.dtype).eps)
        return first

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Keep the inputs of a module."""
        self.take((*args, *kwargs.values()))

    def after(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        """Keep the outputs of the module `name`; note where they are the end of a branch."""
        number = self.take(output)
        for path, site in self.branches.items():  # torch's attention does not call its out_proj
            if number is not None and path in (name, f"{name}.out_proj") and site not in self.ends:
                self.ends[site] = number

    def factors(self) -> list[Factor]:
        """Return the factors of every branch at whose end a merge is found."""
        ordered = sorted(self.ends.items(), key=lambda pair: pair[1])
        ends = [end for _, end in ordered]
        factors = []
        for (site, end), start, stop in zip(ordered, [0, *ends], [*ends[1:], len(self.rows)]):
            if solution := self._solve(start, end, stop):
                factors.append(Factor(site.stack, site.layer, site.sublayer, *solution, "measured"))
        return factors

    def _solve(self, start: int, end: int, stop: int) -> tuple[float, float] | None:
        """Return a and b, neither 0, of the first u after `end` that is a x + b f, with x from `start` on."""
        size = self.rows[end].numel()
        rows = {n: row for n, row in enumerate(self.rows[start : stop + 1], start) if row.numel() == size}
        matrix = torch.stack(list(rows.values()))
        gram = dict(zip(rows, (dict(zip(rows, line)) for line in (matrix @ matrix.T).tolist())))
        for u in (n for n in rows if n > end):
            for f in (n for n in reversed(list(rows)) if end <= n < u):  # as it is merged, past what scales it
                for x in (n for n in reversed(list(rows)) if n < end):
                    determinant = gram[x][x] * gram[f][f] - gram[x][f] ** 2
                    if determinant <= 1e-9 * gram[x][x] * gram[f][f]:
                        continue
                    a = (gram[x][u] * gram[f][f] - gram[f][u] * gram[x][f]) / determinant
                    b = (gram[f][u] * gram[x][x] - gram[x][u] * gram[x][f]) / determinant
                    rest = gram[u][u] - a * gram[x][u] - b * gram[f][u]
                    smaller = min(a * a * gram[x][x], b * b * gram[f][f])
                    most = min(self.exact**2 * gram[u][u], max(SHARE, self.exact) ** 2 * smaller)
                    if abs(rest) <= most and smaller > LEAST**2 * gram[u][u]:
                        return a, b
            alone = (1 - gram[x][u] ** 2 / (gram[x][x] * gram[u][u] or 1) for x in rows if x < end)
            if any(1e-12 < part < 1e-4 for part in alone):
                return None  # the merge with a branch too small to tell
        return None
