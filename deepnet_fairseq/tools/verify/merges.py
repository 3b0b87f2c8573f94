"""Shortcuts of a live module, measured: the merges u = a x + b f of one forward pass, and the LayerNorms around them.

Merges are solved for: among the tensors that pass by, that u which is a x + b f, f what a branch has given, x what was
there before it. Nothing is asked of the code but to run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...core.slots import Site
from .sources import Factor, Found, is_norm

EXACT, SHARE = 1e-5, 0.01  # of a merge u, and of the smaller of a x and b f, what may be unexplained
LEAST = 1e-4  # of u what that smaller one must be


def merges(module: nn.Module, found: Found, inputs: tuple) -> list[Factor]:
    """Shortcut and branch factors a, b of every branch whose merge u = a x + b f can be found in a forward pass.

    inputs: what the module is called with, in evaluation mode. Whatever it raises is raised.
    """
    events, hooks = _Events(found), []
    try:
        for name, part in module.named_modules():
            hooks.append(part.register_forward_pre_hook(events.before(), with_kwargs=True))
            hooks.append(part.register_forward_hook(events.behind(name)))
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
    """The tensors (.., C) that modules were given and gave, in order, each as one row; where branches end."""

    def __init__(self, found: Found):
        last = [m for m in found.matrices if m.weight.role in ("out", "fc2")]
        self.branches = {re.sub(r"\.?\w+$", "", m.name): m.weight.site for m in last}
        self.norms: list[tuple[int, int]] = []  # what each LayerNorm was given and gave
        self.widths = set(found.widths.values())
        self.rows: list[Tensor] = []
        self.ends: dict[Site, int] = {}
        self.exact = EXACT

    def take(self, given: Any) -> int | None:
        """Keeps what of it may be in the stream; the number of the first tensor of it."""
        first = None
        for value in given if isinstance(given, (tuple, list)) else (given,):
            if torch.is_tensor(value) and value.is_floating_point() and value.dim() and value.size(-1) in self.widths:
                first = len(self.rows) if first is None else first
                self.rows.append(value.detach().double().flatten())
                self.exact = max(self.exact, 4 * torch.finfo(value.dtype).eps)
        return first

    def before(self) -> Callable[..., None]:
        """The hook that sees what goes into a module."""

        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.take((*args, *kwargs.values()))

        return hook

    def behind(self, name: str) -> Callable[..., None]:
        """The hook that sees what comes out of it."""

        def hook(module: nn.Module, args: Any, output: Any) -> None:
            number = self.take(output)
            if number and is_norm(module):
                self.norms.append((number - 1, number))
            for path, site in self.branches.items():  # torch's attention does not call its out_proj
                if number is not None and path in (name, f"{name}.out_proj") and site not in self.ends:
                    self.ends[site] = number

        return hook

    def factors(self) -> list[Factor]:
        """Of every branch at whose end a merge is found."""
        ordered = sorted(self.ends.items(), key=lambda pair: pair[1])
        ends = [end for _, end in ordered]
        spans = list(zip([0, *ends], ends, [*ends[1:], len(self.rows)]))
        solved = [self._solve(*span) for span in spans]
        found = []
        for n, ((site, _), solution) in enumerate(zip(ordered, solved)):
            if solution:
                a, b, x, u = solution
                after = solved[n + 1] if n + 1 < len(ends) and ordered[n + 1][0].stack == site.stack else None
                place = self._place(x, u, after[2] if after else None, *spans[n])
                found.append(Factor(site.stack, site.layer, site.sublayer, a, b, "measured", place))
        return found

    def _place(self, x: int, u: int, following: int | None, start: int, end: int, stop: int) -> str:
        """Of the LayerNorm of a branch: does one read its shortcut x, or turn its merge u into the next shortcut?

        "" where the latter is not known, as of a stack's last branch; "none" where others have LayerNorms alone.
        """
        before = [(given, gave) for given, gave in self.norms if start <= given < end]
        behind = [(given, gave) for given, gave in self.norms if end <= given < stop]
        pre = any(self._same(given, x) for given, _ in before)
        if following is None:
            return "pre" if pre else ""
        if self._same(u, following):
            normed = any(self._same(gave, x) for _, gave in before)  # so that another changes nothing
            return "pre" if pre else "none" if self.norms and not normed else ""
        post = any(self._same(given, u) and self._same(gave, following) for given, gave in behind)
        return ("pre and post" if pre else "post") if post else ""

    def _same(self, one: int, other: int) -> bool:
        return torch.equal(self.rows[one], self.rows[other])

    def _solve(self, start: int, end: int, stop: int) -> tuple[float, float, int, int] | None:
        """a and b, neither of them 0, of the first u behind `end` that is a x + b f, x from `start` on; x and u."""
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
                        return a, b, x, u
            alone = (1 - gram[x][u] ** 2 / (gram[x][x] * gram[u][u] or 1) for x in rows if x < end)
            if any(1e-12 < part < 1e-4 for part in alone):
                return None  # the merge with a branch too small to tell
        return None
