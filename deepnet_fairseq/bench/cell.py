"""One place of the table with its repeats: of one candidate, one shape and one measure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

MEASURED = "measured"
NO_MEMORY = "out of memory"
NO_TIME = "out of time"
DIVERGED = "diverged"  # numbers that are not finite
FAILED = "failed"
UNAVAILABLE = "cannot run"


@dataclass
class Cell:
    """What was measured of a candidate at one place; to JSON by dataclasses.asdict.

    values: quantity -> a number for each of `repeats`; condition: beam and so on; facts: what no repeat changes; state:
    one of the module's; reason: why there are no more repeats, also where those that were made stand ("measured").
    """

    measure: str
    candidate: str
    depth: str
    width: str
    condition: dict = field(default_factory=dict)
    state: str = MEASURED
    reason: str = ""
    repeats: list[int] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)
    facts: dict = field(default_factory=dict)

    @property
    def place(self) -> tuple:
        """What those cells have in common that are compared."""
        return self.measure, self.depth, self.width, tuple(self.condition.items())

    def add(self, repeat: int, numbers: dict[str, float]) -> None:
        """The numbers of a repeat, by quantity; each repeat has the same quantities."""
        self.repeats.append(repeat)
        for quantity, number in numbers.items():
            self.values.setdefault(quantity, []).append(number)

    def end(self, state: str, reason: str) -> None:
        """No further repeat; what was measured before stands."""
        self.reason = reason
        if not self.repeats:
            self.state = state

    def summary(self) -> dict[str, dict[str, float]]:
        """Quantity -> its number of repeats, median, smallest and largest."""
        return {
            quantity: {"n": len(row), "median": statistics.median(row), "min": min(row), "max": max(row)}
            for quantity, row in self.values.items()
        }

    def relative_to(self, other: Cell) -> dict[str, float]:
        """Quantity -> median over the repeats both have of this cell's number by the other's."""
        common = sorted(set(self.repeats) & set(other.repeats))
        found = {}
        for quantity in self.values.keys() & other.values.keys():
            mine, others = (dict(zip(cell.repeats, cell.values[quantity], strict=True)) for cell in (self, other))
            ratios = [mine[repeat] / others[repeat] for repeat in common if others[repeat]]
            if ratios:
                found[quantity] = statistics.median(ratios)
        return found
