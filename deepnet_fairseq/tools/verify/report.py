"""The audit of a model beside a method, for the terminal and as data.

A branch is self-attention, cross-attention or feed-forward of a layer. A kind of weight is one role in a branch, as
"fc1" in the feed-forward branch, in all layers of a stack.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ...text_table import render
from .evidence import FLOOR


@dataclass
class Row:
    """One kind of weight over the layers of a stack, a row of the table.

    kind: branch and role, as "ffn.fc1"; expected and has: the method's and the model's standard deviation of each
    layer; ratio: has over expected, pooled over the layers; tolerance: how far from 1 the ratio may be; verdict: in
    words, such as "fits".
    """

    stack: str
    kind: str
    expected: list[float]
    has: list[float]
    ratio: float
    tolerance: float
    verdict: str


@dataclass
class Audit:
    """Result of comparing a model with a method. The names of the fields are the keys of --json.

    method: its registered name; depths: {"encoder": layers, "decoder": layers}, 0 for a stack that the model lacks;
    profile: the initialisation that it is compared with, a key of initialisation.PROFILES; trained: what shows that the
    model has been trained, "" for a fresh one; rows: one for each kind of weight; factors: [stack, sublayer or "all",
    expected, has, verdict] of shortcuts, as the table prints them; findings: what does not fit, a line each; notes:
    remarks, a line each; unexamined: what could not be judged, a line each.
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
        """True if there is no finding."""
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
            header = ["stack", "shortcut of", "expected", "has", "verdict"]
            lines += ["", render([header, *self.factors])]

        lines.append("")
        lines += [f"does not fit: {text}" for text in self.findings]
        lines += [f"note: {text}" for text in self.notes]
        lines += [f"not examined: {text}" for text in self.unexamined]
        lines.append(f"{self._verdict()} --method {self.method}")
        return "\n".join(lines)

    def _verdict(self) -> str:
        """Return the words that begin the report's last line, which claim no more than what was judged."""
        if not self.fits:
            return "does not fit"
        if self.trained:
            return "nothing that is left to judge contradicts"
        return "what was examined fits"  # not all is examined: what the method has in its slots never is


def _cells(row: Row) -> list[str]:
    """Return the cells of a row of the terminal's table, under the header in Audit.text."""
    return [
        row.stack,
        row.kind,
        str(len(row.has)),
        _range(row.expected),
        _range(row.has),
        f"{row.ratio:.3f}",
        f"{row.tolerance:.1%}",
        row.verdict,
    ]


def _range(stds: list[float]) -> str:
    """Return "smallest .. largest" of the layers' standard deviations, or the smallest if they differ by at most FLOOR.

    FLOOR is relative to the largest.
    """
    smallest = min(stds)
    largest = max(stds)
    if largest - smallest <= FLOOR * largest:
        return f"{smallest:.5f}"
    return f"{smallest:.5f} .. {largest:.5f}"
