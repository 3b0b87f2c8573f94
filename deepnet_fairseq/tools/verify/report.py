"""The audit of a model beside a method, for the terminal and as data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ...text_table import render
from .evidence import FLOOR


@dataclass
class Row:
    """One kind of weight over the layers of a stack; expected and has: standard deviations, layer by layer."""

    stack: str
    kind: str
    expected: list[float]
    has: list[float]
    ratio: float
    tolerance: float
    verdict: str


@dataclass
class Audit:
    """Audit of a model. findings: what does not fit, a line each; notes: remarks.

    trained: how it shows that the model has been trained, "" for a fresh one; factors: stack, place, expected, has and
    verdict of each shortcut; unexamined: what could not be judged.
    """

    method: str
    depths: dict[str, int]
    profile: str
    trained: str = ""
    rows: list[Row] = field(default_factory=list)
    factors: list[list[str]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unexamined: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Return whether there is no finding."""
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """Return every field, and `fits`, for JSON."""
        return dataclasses.asdict(self) | {"fits": self.fits}

    def text(self) -> str:
        """Return tables, findings and notes for the terminal."""
        depth = ", ".join(f"{stack} {layers}" for stack, layers in self.depths.items() if layers)
        lines = [f"--method {self.method}, {self.profile}; layers: {depth}; {self.trained or 'fresh'}", ""]
        header = ["stack", "weight", "matrices", "expected std", "has", "ratio", "within", "verdict"]
        lines.append(render([header, *(_cells(row) for row in self.rows)]))
        if self.factors:
            lines += ["", render([["stack", "shortcut of", "expected", "has", "verdict"], *self.factors])]
        lines += ["", *(f"does not fit: {text}" for text in self.findings), *(f"note: {text}" for text in self.notes)]
        lines += [f"not examined: {text}" for text in self.unexamined]
        verdict = "what was examined fits" if self.unexamined else "fits"
        verdict = "nothing that is left to judge contradicts" if self.trained else verdict
        lines.append(f"{verdict if self.fits else 'does not fit'} --method {self.method}")
        return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    spread = [f"{min(v):.5f}" if max(v) - min(v) <= FLOOR * max(v) else f"{min(v):.5f} .. {max(v):.5f}"
              for v in (row.expected, row.has)]  # fmt: skip
    return [row.stack, row.kind, str(len(row.has)), *spread, f"{row.ratio:.3f}", f"{row.tolerance:.1%}", row.verdict]
