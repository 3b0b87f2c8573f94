"""One number of the table with its repeats: of one candidate, one shape and one measure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

MEASURED, NO_MEMORY, NO_TIME, DIVERGED, FAILED, UNAVAILABLE = (
    "measured",
    "out of memory",
    "out of time",
    "diverged",
    "failed",
    "cannot run",
)


@dataclass
class Cell:
    """values: quantity -> one number a repeat; facts: what is the same in all of them; setting: beam and so on."""

    measure: str
    candidate: str
    depth: str
    width: str
    setting: dict = field(default_factory=dict)
    state: str = MEASURED
    reason: str = ""
    values: dict[str, list[float]] = field(default_factory=dict)
    facts: dict = field(default_factory=dict)

    @property
    def place(self) -> tuple:
        """What cells have in common that are compared."""
        return self.measure, self.depth, self.width, tuple(sorted(self.setting.items()))

    def add(self, numbers: dict[str, float]) -> None:
        for quantity, number in numbers.items():
            self.values.setdefault(quantity, []).append(number)

    def end(self, state: str, reason: str = "") -> None:
        """No further repeat; what was measured before stands."""
        self.reason = reason
        if not self.values:
            self.state = state

    def summary(self) -> dict[str, dict[str, float]]:
        """Quantity -> n, median, smallest and largest."""
        return {
            quantity: {"n": len(row), "median": statistics.median(row), "min": min(row), "max": max(row)}
            for quantity, row in self.values.items()
        }
