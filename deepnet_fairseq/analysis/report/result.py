"""Rows of a report, each the runs that differ in their seed alone, and their numbers beside the published ones."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...methods import METHODS
from ..style import style_of
from .entry import Entry, Standing, State, beside
from .tables import DEPTH, Row, Table


@dataclass(frozen=True)
class Cell:
    """One measured number over the seeds of its runs, beside the published one, both in the metric's unit.

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
        others = Counter(map(str, self.without_value))
        parts += [text if count == 1 else f"{text}, n={count}" for text, count in others.items()]
        return ", ".join(parts) or State.NOT_RUN.value


@dataclass
class Result:
    """One row: `row` of the paper or, without published numbers, of runs that the paper does not have.

    entries: its runs, which differ in their seed and, in a tuned table, in what was searched over.
    """

    table: Table
    row: Row
    entries: list[Entry] = field(default_factory=list)
    miniature: bool = False

    @property
    def method(self) -> str | None:
        """None for a system that is not trained here."""
        return self.row.facts.get("method")

    @property
    def label(self) -> str:
        """The system as the paper names it, else the method's name in figures and tables."""
        return self.row.label or style_of(str(self.method)).label

    @property
    def norm(self) -> str | None:
        """Where the method's LayerNorms stand: post, pre or none."""
        return METHODS[self.method].norm if self.method in METHODS else None

    @property
    def depth(self) -> str:
        """As "18L-18L", behind what else the table's rows differ by."""
        if not self.row.facts:
            return str(self.row.layers)
        layers = [f"{self.row.facts[key]}L" for key in DEPTH[1:] if key in self.table.keys]
        return " ".join([*self.others, "-".join(layers)]).strip()

    @property
    def others(self) -> list[str]:
        """What tells it apart from rows of the same method and depth."""
        return [str(self.row.facts.get(key, "")) for key in self.table.others]

    @property
    def layers(self) -> int | None:
        """Encoder and decoder together; None in a table that does not tell rows apart by them."""
        found = [self.row.facts[key] for key in DEPTH[1:] if key in self.row.facts]
        return sum(found) if found else self.row.layers

    @cached_property
    def best(self) -> list[Entry]:
        """The runs that its numbers are of: all, in a tuned table those of the best value; all while none has one."""
        if not self.table.tuned:
            return self.entries
        groups: dict[object, list[Entry]] = {}
        for entry in self.entries:
            groups.setdefault(entry.run.facts[self.table.tuned], []).append(entry)
        column, sign = self.table.columns[0], 1 if self.table.metric.higher_is_better else -1
        means = {value: _cell(column.read, entries).mean for value, entries in groups.items()}
        found = {value: sign * mean for value, mean in means.items() if mean is not None}
        return groups[max(found, key=found.__getitem__)] if found else self.entries

    @property
    def tuned(self) -> str:
        """The value of what was searched over; "" while there is none."""
        values = {str(entry.run.facts[self.table.tuned]) for entry in self.best} if self.table.tuned else set()
        return values.pop() if len(values) == 1 else ""

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Key of a column -> its measured and its published number."""
        published = self.row.published
        return {
            column.key: _cell(column.read, self.best, published.get(column.key), not self.miniature)
            for column in self.table.columns
        }

    def beside(self, metric: str) -> Cell:
        """Another metric of score.json, as sacrebleu or chrf."""
        return _cell(lambda score: beside(score, metric), self.best)

    @property
    def parameters(self) -> int | None:
        """Of the first of its runs that tells; None if none does."""
        return next((entry.parameters for entry in self.entries if entry.parameters), None)

    @property
    def letters(self) -> list[str]:
        """Those of the environments that its runs were trained in."""
        return sorted({entry.environment for entry in self.entries}, key=lambda letter: (len(letter), letter))


def _cell(
    read: Callable[[dict], float | None],
    entries: Iterable[Entry],
    published: float | str | None = None,
    comparable: bool = True,
) -> Cell:
    return Cell(tuple((entry.standing, read(entry.score)) for entry in entries), published, comparable)


def results_of(table: Table, entries: Sequence[Entry], miniature: bool) -> list[Result]:
    """The paper's rows and those that only runs have: models in the paper's order, then others; each by its depth."""
    found = {
        tuple(row.facts.get(key, rank) for key in table.keys): Result(table, row, [], miniature)
        for rank, row in enumerate(table.rows)
    }

    def order(entry: Entry) -> list:
        facts = [*entry.key, entry.run.seed or 0, entry.name]
        return [(isinstance(fact, str), fact) for fact in facts]

    for entry in sorted(entries, key=order):
        row = Row(dict(zip(table.keys, entry.key, strict=True)), {})
        found.setdefault(entry.key, Result(table, row, [], miniature)).entries.append(entry)
    return shallow_first(found.values(), lambda result: (result.label, *result.others))


def shallow_first(results: Iterable[Result], group: Callable[[Result], object]) -> list[Result]:
    """Groups in the order of their first, from shallow to deep within each."""
    results = list(results)
    groups = list(dict.fromkeys(map(group, results)))
    return sorted(results, key=lambda result: (groups.index(group(result)), result.layers or 0))
