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

# what of u = a x + b f may be unexplained, as a share of a norm
EXACT = 1e-5  # of the norm of u
SHARE = 0.01  # of the smaller of the norms of a x and b f
LEAST = 1e-4  # the smaller of these two must be this share of u's


def measured_factors(module: nn.Module, model: RecognisedModel, inputs: tuple) -> list[Factor]:
    """Return the factors a, b of every branch whose merge u = a x + b f is found in a forward pass.

    inputs: what the module is called with, in evaluation mode. Whatever it raises is raised.
    """
    events = _Events(model)
    hooks = []
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
    """Tensors (.., C) that modules received and returned, in order, and where branches end.

    branches: path of the module that ends a branch -> its site; widths: C of each stack; rows: the tensors, flattened
    to float64; ends: the row that a branch returned; exact: EXACT, or more where half precision rounds more.
    """

    def __init__(self, model: RecognisedModel):
        last = [matrix for matrix in model.matrices if matrix.weight.role in ("out", "fc2")]
        self.branches = {re.sub(r"\.?\w+$", "", matrix.name): matrix.weight.site for matrix in last}
        self.widths = set(model.widths.values())
        self.rows: list[Tensor] = []
        self.ends: dict[Site, int] = {}
        self.exact = EXACT

    def take(self, given: Any) -> int | None:
        """Keep the tensors that may be in the stream; return the row of the first, None if there is none.

        given: what a module returned, or a tuple of what it received.
        """
        values = given if isinstance(given, (tuple, list)) else (given,)
        first = None
        for value in values:
            if torch.is_tensor(value) and value.is_floating_point() and value.dim() and value.size(-1) in self.widths:
                if first is None:
                    first = len(self.rows)
                self.rows.append(value.detach().double().flatten())
                self.exact = max(self.exact, 4 * torch.finfo(value.dtype).eps)
        return first

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Keep the inputs of a module."""
        self.take((*args, *kwargs.values()))

    def after(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        """Keep the outputs of the module `name`; note where they are the end of a branch."""
        row = self.take(output)
        if row is None:
            return
        for path, site in self.branches.items():
            is_end = path in (name, f"{name}.out_proj")  # torch's attention does not call its out_proj
            if is_end and site not in self.ends:
                self.ends[site] = row

    def factors(self) -> list[Factor]:
        """Return the factors of every branch at whose end a merge is found."""
        ordered = sorted(self.ends.items(), key=lambda pair: pair[1])
        ends = [end for _, end in ordered]
        starts = [0, *ends[:-1]]  # x is looked for from the end of the branch before
        stops = [*ends[1:], len(self.rows)]  # and u up to the end of the next one

        factors = []
        for (site, end), start, stop in zip(ordered, starts, stops):
            solution = self._find_merge(start, end, stop)
            if solution is not None:
                a, b = solution
                factor = Factor(stack=site.stack, layer=site.layer, sublayer=site.sublayer, a=a, b=b, source="measured")
                factors.append(factor)
        return factors

    def _find_merge(self, start: int, end: int, stop: int) -> tuple[float, float] | None:
        """Return a and b, neither 0, of the first merge u = a x + b f after a branch; None if none is found.

        Rows from `start` to `stop` are looked at. x: a row before `end`, where the branch ends; f: one from `end` on,
        before u. Of both the latest are tried first: f as it is merged, past what scales it.
        """
        size = self.rows[end].numel()
        numbers = [n for n in range(start, min(stop + 1, len(self.rows))) if self.rows[n].numel() == size]
        matrix = torch.stack([self.rows[n] for n in numbers])
        gram = (matrix @ matrix.T).tolist()  # inner products of all pairs of rows

        branch = numbers.index(end)  # from here on numbers are those of the matrix's rows
        for u in range(branch + 1, len(numbers)):
            for f in range(u - 1, branch - 1, -1):
                for x in range(branch - 1, -1, -1):
                    solution = self._solve(gram, x=x, f=f, u=u)
                    if solution is not None:
                        return solution
            if any(_is_almost_multiple(gram, x, u) for x in range(branch)):
                return None  # the merge with a branch too small to tell
        return None

    def _solve(self, gram: list[list[float]], x: int, f: int, u: int) -> tuple[float, float] | None:
        """Return a and b of u = a x + b f, by least squares; None unless they explain u and neither part is tiny.

        gram: inner products of rows; x, f, u: numbers of rows. The normal equations, solved by Cramer's rule, are

            (x.x  x.f) (a)   (x.u)                 a = (x.u f.f - f.u x.f) / d
            (x.f  f.f) (b) = (f.u)                 b = (f.u x.x - x.u x.f) / d,    d = x.x f.f - (x.f)^2,

        and |u - a x - b f|^2 = u.u - a x.u - b f.u is the rest.
        """
        xx = gram[x][x]
        xf = gram[x][f]
        xu = gram[x][u]
        ff = gram[f][f]
        fu = gram[f][u]
        uu = gram[u][u]

        determinant = xx * ff - xf**2
        if determinant <= 1e-9 * xx * ff:  # x and f are almost parallel
            return None
        a = (xu * ff - fu * xf) / determinant
        b = (fu * xx - xu * xf) / determinant

        rest = uu - a * xu - b * fu
        smaller = min(a * a * xx, b * b * ff)
        allowed = min(self.exact**2 * uu, max(SHARE, self.exact) ** 2 * smaller)
        if abs(rest) <= allowed and smaller > LEAST**2 * uu:
            return a, b
        return None


def _is_almost_multiple(gram: list[list[float]], x: int, u: int) -> bool:
    """Return whether u is x times a number but for a small part, which is a branch that is almost 0.

    Below 1e-12 nothing but rounding is left: u is x once more, and no merge.
    """
    part = 1 - gram[x][u] ** 2 / (gram[x][x] * gram[u][u] or 1)  # of |u|^2
    return 1e-12 < part < 1e-4
