"""Measure the factors a and b of a live module's residual merges u = a x + b f, in one forward pass.

Hooks record the tensors that its modules receive and return. Among them a triple is looked for that solves the
equation: f is the output of a branch, x (the shortcut) was seen before it, and u (the merge) after it. The module need
not name its merges; it only has to run.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...core.slots import Site
from .sources import Factor, RecognisedModel

# u = a x + b f holds if the norm |u - a x - b f| is at most both
EXACT = 1e-5  # of |u|, and
SHARE = 0.01  # of the smaller one of |a x| and |b f|,
LEAST = 1e-4  # and if that smaller one is more than this share of |u|


def measured_factors(module: nn.Module, model: RecognisedModel, inputs: tuple) -> list[Factor]:
    """Return the factors a, b of every branch whose merge u = a x + b f is found in a forward pass of `module`.

    model: what was recognised of the module, which tells its branches; inputs: what the module is called with, in
    evaluation mode. Whatever it raises is raised.
    """
    recording = _Recording(model)
    hooks = []
    try:
        for name, part in module.named_modules():
            hooks.append(part.register_forward_pre_hook(recording.before, with_kwargs=True))
            hooks.append(part.register_forward_hook(partial(recording.after, name)))

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
    return recording.factors()


class _Recording:
    """The tensors (.., C) that modules received and returned in a forward pass, and which of them branches returned.

    branches: path of the module that is a branch's last matrix -> the branch; widths: C of each stack; tensors: as they
    came, flattened and in float64; ends: branch -> index in `tensors` of what it returned; exact: EXACT, or more where
    half precision rounds more.
    """

    def __init__(self, model: RecognisedModel):
        last = [matrix for matrix in model.matrices if matrix.weight.role in ("out", "fc2")]
        # a matrix is named as stored, such as "layers.0.fc2.weight": its module's path, and its own name in the module
        self.branches = {re.sub(r"\.?\w+$", "", matrix.name): matrix.weight.site for matrix in last}
        self.widths = set(model.widths.values())
        self.tensors: list[Tensor] = []
        self.ends: dict[Site, int] = {}
        self.exact = EXACT

    def record(self, given: Any) -> int | None:
        """Record the tensors that may belong to the residual stream, by their width and type.

        given: what a module returned, or a tuple of what it received. Return the index of the first tensor that is
        recorded, None if there is none.
        """
        values = given if isinstance(given, (tuple, list)) else (given,)
        first = None
        for value in values:
            if torch.is_tensor(value) and value.is_floating_point() and value.dim() and value.size(-1) in self.widths:
                if first is None:
                    first = len(self.tensors)
                self.tensors.append(value.detach().double().flatten())
                self.exact = max(self.exact, 4 * torch.finfo(value.dtype).eps)
        return first

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Record the inputs of a module; a forward pre-hook of torch."""
        self.record((*args, *kwargs.values()))

    def after(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        """Record the outputs of the module with path `name`, and note what branch they end; a forward hook of torch."""
        index = self.record(output)
        if index is None:
            return
        for path, site in self.branches.items():
            is_end = path in (name, f"{name}.out_proj")  # torch's attention does not call its out_proj
            if is_end and site not in self.ends:
                self.ends[site] = index

    def factors(self) -> list[Factor]:
        """Return the factors of every branch after which a merge is found."""
        ordered = sorted(self.ends.items(), key=lambda pair: pair[1])  # pairs (branch, its end)
        ends = [end for _, end in ordered]
        starts = [0, *ends[:-1]]  # x is looked for from the end of the branch before
        stops = [*ends[1:], len(self.tensors)]  # and u up to the end of the next one

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

        start, end, stop: indices in `tensors`. The branch returned the tensor `end`; x is one from `start` to before
        `end`, f one from `end` to before u, and u one up to `stop`. The first u is taken, with the latest f and x that
        solve it: f is then what is merged, after a module that scales the branch.
        """
        size = self.tensors[end].numel()
        last = min(stop, len(self.tensors) - 1)
        indices = [index for index in range(start, last + 1) if self.tensors[index].numel() == size]
        matrix = torch.stack([self.tensors[index] for index in indices])
        gram = (matrix @ matrix.T).tolist()  # inner products of all pairs of these tensors

        branch = indices.index(end)  # from here on x, f, u and `branch` are places in `gram`
        for u in range(branch + 1, len(indices)):
            for f in range(u - 1, branch - 1, -1):
                for x in range(branch - 1, -1, -1):
                    solution = self._solve(gram, x=x, f=f, u=u)
                    if solution is not None:
                        return solution
            if any(_is_almost_multiple(gram, x, u) for x in range(branch)):
                return None  # u is the merge, and its branch is too small to tell the factors
        return None

    def _solve(self, gram: list[list[float]], x: int, f: int, u: int) -> tuple[float, float] | None:
        """Return a and b of u = a x + b f, by least squares; None unless they explain u and neither part is tiny.

        gram: inner products of all pairs of tensors; x, f, u: the places of three of them in it. The normal equations,
        solved by Cramer's rule, are

            (x.x  x.f) (a)   (x.u)                 a = (x.u f.f - f.u x.f) / d
            (x.f  f.f) (b) = (f.u)                 b = (f.u x.x - x.u x.f) / d,    d = x.x f.f - (x.f)^2,

        and |u - a x - b f|^2 = u.u - a x.u - b f.u is the rest. EXACT and SHARE bound the rest, LEAST the
        smaller part from below.
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
    """Return whether u is a number times x plus a small remainder: x merged with a branch that is almost 0.

    gram, x, u: as for `_solve`. A remainder below 1e-12 of |u|^2 is mere rounding: u is x once more, and no merge.
    """
    squared_norms = gram[x][x] * gram[u][u]
    remainder = 1 - gram[x][u] ** 2 / (squared_norms or 1)  # as a share of |u|^2; sin^2 of the angle between x and u
    return 1e-12 < remainder < 1e-4
