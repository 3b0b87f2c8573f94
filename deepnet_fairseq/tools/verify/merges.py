"""Measure the factors a and b of a live module's residual merges u = a x + b f, in one forward pass.

Hooks record the tensors that its modules receive and return. Among them a triple is looked for that solves the
equation: f is the output of a branch (self-attention, cross-attention or feed-forward of a layer), x (the shortcut) was
seen before it, and u (the merged stream) after it. The module need not name its merges; it only has to run.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...core.slots import Site
from .sources import Factor, RecognisedModel

# u = a x + b f counts as solved if the remainder u - a x - b f is small, and neither of the parts a x and b f tiny:
MAX_REMAINDER = 1e-5  # largest norm of the remainder, as a share of |u|, and
MAX_SHARE = 0.01  # as a share of the smaller one of |a x| and |b f|
MIN_PART = 1e-4  # smallest norm of that smaller one, as a share of |u|


def measure_factors(module: nn.Module, model: RecognisedModel, inputs: tuple) -> list[Factor]:
    """Call a module and return the factors a, b of every branch whose merge u = a x + b f is found.

    model: what was recognised of the module, which tells its branches; inputs: positional arguments of the call, which
    is in evaluation mode. Whatever the module raises is raised. The modes of its parts are restored.
    """
    recording = _Recording(model)
    hooks = []
    try:
        for name, part in module.named_modules():
            hooks.append(part.register_forward_pre_hook(recording.before, with_kwargs=True))
            hooks.append(part.register_forward_hook(partial(recording.after, name)))

        modes = [(part, part.training) for part in module.modules()]  # parts may differ
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

    branches: path of the module that is a branch's last matrix -> the branch; widths: C of each stack; tensors: in the
    order in which they were seen, flattened and in float64; ends: branch -> index in `tensors` of what it returned;
    max_remainder: MAX_REMAINDER, or more where half precision rounds more.
    """

    def __init__(self, model: RecognisedModel):
        last = [matrix for matrix in model.matrices if matrix.weight.role in ("out", "fc2")]
        # a matrix is named as stored, such as "layers.0.fc2.weight": its module's path, and its own name in the module
        self.branches = {re.sub(r"\.?\w+$", "", matrix.name): matrix.weight.site for matrix in last}
        self.widths = set(model.widths.values())
        self.tensors: list[Tensor] = []
        self.ends: dict[Site, int] = {}
        self.max_remainder = MAX_REMAINDER

    def record(self, given: Any) -> int | None:
        """Record the tensors that may belong to the residual stream: floating-point ones whose last dimension is a C.

        given: what a module returned, or a tuple of what it received. Return the index in `tensors` of the first that
        is recorded, None if there is none.
        """
        values = given if isinstance(given, (tuple, list)) else (given,)
        first = None
        for value in values:
            if torch.is_tensor(value) and value.is_floating_point() and value.dim() and value.size(-1) in self.widths:
                if first is None:
                    first = len(self.tensors)
                self.tensors.append(value.detach().double().flatten())
                rounding = 4 * torch.finfo(value.dtype).eps  # of a few operations
                self.max_remainder = max(self.max_remainder, rounding)
        return first

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Record the inputs of a module; a forward pre-hook of torch."""
        self.record((*args, *kwargs.values()))

    def after(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        """Record the outputs of the module with path `name`, and note in `ends` if they are what a branch returns.

        This is a forward hook of torch. The first call counts if a module is called more than once.
        """
        index = self.record(output)
        if index is None:
            return
        for path, site in self.branches.items():
            # torch's attention does not call its module out_proj, so that the attention itself has to end the branch
            is_end = path in (name, f"{name}.out_proj")
            if is_end and site not in self.ends:
                self.ends[site] = index

    def factors(self) -> list[Factor]:
        """Return the factors of every branch after which a merge is found, in the order of the forward pass."""
        ordered = sorted(self.ends.items(), key=lambda pair: pair[1])  # pairs (branch, index of what it returned)
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

        start, end, stop: indices in `tensors`. `end` is what the branch returned; x is looked for from `start` to
        before `end`, f from `end` to before u, and u after `end` up to `stop`. The first u is taken, with the latest f
        and x that solve the equation: if a module scales the branch after its last matrix, f is that module's output.
        """
        size = self.tensors[end].numel()
        last = min(stop, len(self.tensors) - 1)
        indices = [index for index in range(start, last + 1) if self.tensors[index].numel() == size]
        matrix = torch.stack([self.tensors[index] for index in indices])
        gram = (matrix @ matrix.T).tolist()  # inner products of all pairs of these tensors

        # x, f, u and `branch` are rows of `matrix`, so also rows and columns of `gram`
        branch = indices.index(end)
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

        gram: inner products of all pairs of tensors; x, f, u: the rows and columns of three of them. The normal
        equations, solved by Cramer's rule, are

            (x.x  x.f) (a)   (x.u)                 a = (x.u f.f - f.u x.f) / d
            (x.f  f.f) (b) = (f.u)                 b = (f.u x.x - x.u x.f) / d,    d = x.x f.f - (x.f)^2,

        and the remainder has |u - a x - b f|^2 = u.u - a x.u - b f.u. MAX_REMAINDER and MAX_SHARE bound it, MIN_PART
        bounds the smaller one of |a x| and |b f| from below.
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

        # squared norms, of the remainder and of the smaller part
        remainder = uu - a * xu - b * fu
        smaller = min(a * a * xx, b * b * ff)
        allowed = min(self.max_remainder**2 * uu, max(MAX_SHARE, self.max_remainder) ** 2 * smaller)
        if abs(remainder) <= allowed and smaller > MIN_PART**2 * uu:
            return a, b
        return None


def _is_almost_multiple(gram: list[list[float]], x: int, u: int) -> bool:
    """Return whether u is a number times x plus a small remainder: x merged with a branch that is almost 0.

    gram, x, u: as for `_solve`. The squared remainder has to be below 1e-4 of |u|^2. Below 1e-12 it is mere rounding: u
    is x once more, and no merge.
    """
    squared_norms = gram[x][x] * gram[u][u]
    # sin^2 of the angle between x and u, which is the squared remainder as a share of |u|^2
    remainder = 1 - gram[x][u] ** 2 / (squared_norms or 1)  # 1 for a tensor of zeros, whose products are all 0
    return 1e-12 < remainder < 1e-4
