"""Rows of a report: the runs that differ in their seed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...methods import METHODS
from ..style import style_of
from .cell import Cell
from .entry import Entry, beside, key_of
from .table import DEPTH, Column, Row, Table


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
        means = {value: _cell(column, entries).mean for value, entries in groups.items()}
        found = {value: sign * mean for value, mean in means.items() if mean is not None}
        return groups[max(found, key=found.__getitem__)] if found else self.entries

    @property
    def tuned(self) -> str:
        """The value of what was searched over; "" while there is none."""
        values = {str(entry.run.facts[self.table.tuned]) for entry in self.best} if self.table.tuned else ()
        return next(iter(values)) if len(values) == 1 else ""

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Key of a column -> its measured and its published number."""
        return {
            column.key: _cell(
                column,
                self.best,
                self.row.published.get(column.key),
                comparable=not self.miniature,
            )
            for column in self.table.columns
        }

    def beside(self, metric: str) -> Cell:
        """Another metric of score.json, as sacrebleu or chrf."""
        return Cell(tuple((entry.standing, beside(entry.score, metric)) for entry in self.best))

    @property
    def parameters(self) -> int | None:
        """Of the first of its runs that tells; None if none does."""
        return next((entry.parameters for entry in self.entries if entry.parameters), None)

    @property
    def letters(self) -> list[str]:
        """Those of the environments that its runs were trained in."""
        return sorted({entry.environment for entry in self.entries}, key=lambda letter: (len(letter), letter))


def _cell(column: Column, entries: Iterable[Entry], *published: Any, **options: Any) -> Cell:
    return Cell(tuple((entry.standing, column.read(entry.score)) for entry in entries), *published, **options)


def results_of(table: Table, entries: Sequence[Entry], miniature: bool) -> list[Result]:
    """The paper's rows and those that only runs have: models in the paper's order, then others; each by its depth."""
    found = {
        tuple(row.facts.get(key, rank) for key in table.keys): Result(table, row, [], miniature)
        for rank, row in enumerate(table.rows)
    }
    for entry in sorted(entries, key=_order):
        key = key_of(table, entry.run)
        row = Row(dict(zip(table.keys, key, strict=True)), {})
        found.setdefault(key, Result(table, row, [], miniature)).entries.append(entry)
    return shallow_first(found.values(), lambda result: (result.label, *result.others))


def shallow_first(results: Iterable[Result], group: Callable[[Result], object]) -> list[Result]:
    """Groups in the order of their first, from shallow to deep within each."""
    results = list(results)
    groups = list(dict.fromkeys(map(group, results)))
    return sorted(results, key=lambda result: (groups.index(group(result)), result.layers or 0))


def _order(entry: Entry) -> list:
    """By the table's keys, then by seed and name."""
    facts = [*key_of(entry.table, entry.run), entry.run.seed or 0, entry.name]
    return [(isinstance(fact, str), fact) for fact in facts]
