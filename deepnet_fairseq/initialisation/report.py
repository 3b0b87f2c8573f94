"""Is a built model initialised as its method says? Expected against measured std of every kind of weight."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import nn

from ..methods import Method
from .visit import branch_weights, weight_std


@dataclass
class Row:
    """All matrices of one role in one kind of branch, over the layers of a stack; stds in units of the weight."""

    stack: str
    sublayer: str
    role: str
    expected: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    largest_bias: float = 0.0

    @property
    def ratio(self) -> float:
        """Measured over expected, pooled over layers; 1 up to sampling noise."""
        squares = [(m / e) ** 2 for m, e in zip(self.measured, self.expected, strict=True) if e > 0]
        return math.sqrt(sum(squares) / len(squares)) if squares else float(any(self.measured) or 1)

    def as_dict(self) -> dict:
        """For --json: stds as [smallest, largest] over the layers."""
        return {
            "stack": self.stack,
            "sublayer": self.sublayer,
            "role": self.role,
            "layers": len(self.expected),
            "expected_std": [min(self.expected), max(self.expected)],
            "measured_std": [min(self.measured), max(self.measured)],
            "ratio": self.ratio,
            "largest_bias": self.largest_bias,
        }


@torch.no_grad()
def init_report(model: nn.Module, method: Method, profile: str) -> list[Row]:
    """One Row per stack, kind of branch and role, in forward order; profile: a key of PROFILES."""
    rows: dict[tuple, Row] = {}
    for weight in branch_weights(model):
        site, linear = weight.site, weight.linear
        key = (site.stack, site.sublayer, weight.role)
        row = rows.setdefault(key, Row(*key))
        row.expected.append(weight_std(method, profile, weight))
        row.measured.append(linear.weight.float().std().item())
        if linear.bias is not None:
            row.largest_bias = max(row.largest_bias, linear.bias.abs().max().item())
    return list(rows.values())


def as_table(rows: list[Row]) -> list[list[str]]:
    """Header and cells; a range where the layers of a stack differ."""
    header = ["stack", "branch", "role", "layers", "expected std", "measured std", "ratio", "largest |bias|"]
    cells = [
        [r.stack, r.sublayer, r.role, str(len(r.expected)), _range(r.expected), _range(r.measured)]
        + [f"{r.ratio:.4f}", f"{r.largest_bias:.3g}"]
        for r in rows
    ]
    return [header, *cells]


def _range(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.6f}" if math.isclose(low, high, rel_tol=1e-6) else f"{low:.6f} .. {high:.6f}"
