"""One measured number of a table, over the seeds of its runs, beside the published one."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from .standing import Standing, State


@dataclass(frozen=True)
class Cell:
    """One measured number, beside the published one, both in the metric's unit.

    outcomes: a run's standing, with its value if it has one. published: number, "diverged", or None: not given.
    """

    outcomes: tuple[tuple[Standing, float | None], ...]
    published: float | str | None = None
    comparable: bool = True  # with the published number

    @property
    def values(self) -> list[float]:
        """Those of the runs that have one, a seed each."""
        return [value for _, value in self.outcomes if value is not None]

    @property
    def mean(self) -> float | None:
        """Over the seeds; None without values."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def sd(self) -> float | None:
        """Standard deviation of the sample (n - 1); None for one value."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Measured minus published, where both are numbers."""
        if self.comparable and self.mean is not None and isinstance(self.published, (int, float)):
            return self.mean - self.published
        return None

    @property
    def without_value(self) -> list[Standing]:
        """Of the runs that add nothing to the mean; a run scored without this number counts as not scored."""
        standings = (standing for standing, value in self.outcomes if value is None)
        return [Standing(State.UNSCORED) if s.state is State.SCORED else s for s in standings]

    @property
    def state(self) -> State:
        """SCORED if any run is; else the first of running, in part, not scored, diverged that one is; else NOT_RUN."""
        if self.values:
            return State.SCORED
        states = [standing.state for standing in self.without_value]
        ranked = (State.RUNNING, State.IN_PART, State.UNSCORED, State.DIVERGED)
        return next((state for state in ranked if state in states), State.NOT_RUN)

    def text(self, digits: int) -> str:
        """As "27.53 ± 0.12, n=3, diverged at update 400"."""
        parts = [f"{self.mean:.{digits}f}"] if self.mean is not None else []
        if self.sd is not None:
            parts = [f"{parts[0]} ± {self.sd:.{digits}f}, n={len(self.values)}"]
        return ", ".join(parts + list(_counted(map(str, self.without_value)))) or State.NOT_RUN.value


def _counted(texts: Iterable[str]) -> Iterable[str]:
    """Each text once, in the order of the first, with how often it occurs."""
    found = list(texts)
    for text in dict.fromkeys(found):
        count = found.count(text)
        yield text if count == 1 else f"{text}, n={count}"
