"""Rows of a report: a run with what the table tells of it, and the runs that differ in their seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...errors import UserError
from ...methods import METHODS
from ..recorded_run import RecordedRun
from ..style import style_of
from .cell import Cell
from .environment import cost
from .model_size import parameters
from .standing import Standing, State, updates
from .table import DEPTH, Row, Table
from .wall_time import training_hours


@dataclass
class Entry:
    """One run. environment: its letter; p: of the paired test against the run `baseline`, None if none was made."""

    table: Table
    run: RecordedRun
    environment: str
    baseline: str | None = None
    p: float | None = None

    @property
    def name(self) -> str:
        """Of its folder; with the experiment's where a table reads several."""
        folder = self.run.folder
        return folder.name if len(self.table.folders) == 1 else f"{folder.parent.name}/{folder.name}"

    @cached_property
    def standing(self) -> Standing:
        return Standing.of(self.run)

    @cached_property
    def score(self) -> dict:
        """Empty unless the run is over and scored; UserError if a score has nothing of what the table asks for."""
        score = self.run.score if self.standing.state is State.SCORED else {}
        if score and all(column.read(score) is None for column in self.table.columns):
            asked = " or ".join(f'"{".".join(column.path)}"' for column in self.table.columns)
            raise UserError(f"{self.run.folder / 'score.json'}: holds no number {asked}; score the run again")
        return score

    @cached_property
    def updates(self) -> int | None:
        return updates(self.run)

    @cached_property
    def wall_hours(self) -> float | None:
        return training_hours(self.run.folder / "train.log")

    @property
    def cost(self) -> tuple[float, str] | None:
        return cost(self.run, self.wall_hours)

    @cached_property
    def parameters(self) -> int | None:
        return parameters(self.run)


@dataclass
class Result:
    """One row: `row` of the paper or, without published numbers, of runs that the paper does not have."""

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
        return self.row.label or style_of(self.method).label

    @property
    def norm(self) -> str | None:
        """Where its LayerNorms stand."""
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
    def cells(self) -> dict[str, Cell]:
        """Key of a column -> its numbers."""
        return {
            column.key: Cell(
                tuple((entry.standing, column.read(entry.score)) for entry in self.entries),
                self.row.published.get(column.key),
                comparable=not self.miniature,
            )
            for column in self.table.columns
        }

    def beside(self, metric: str) -> Cell:
        """Another metric of score.json, as sacrebleu or chrf."""
        return Cell(tuple((entry.standing, beside(entry.score, metric)) for entry in self.entries))

    @property
    def parameters(self) -> int | None:
        return next((entry.parameters for entry in self.entries if entry.parameters), None)

    @property
    def letters(self) -> list[str]:
        """Of the environments of its runs."""
        return sorted({entry.environment for entry in self.entries}, key=lambda letter: (len(letter), letter))


def beside(score: dict, metric: str, key: str = "score") -> float | None:
    """The number of a further metric, None where it was not measured."""
    found = score.get(metric)
    value = found.get(key) if isinstance(found, dict) else None
    return float(value) if isinstance(value, (int, float)) else None


def key_of(table: Table, run: RecordedRun) -> tuple:
    """What run.json says under the table's keys; UserError if one is not there."""
    for key in table.keys:
        if not isinstance(run.facts.get(key), (str, int)):
            raise UserError(
                f"{run.folder / 'run.json'}: {key} is missing; table {table.name} tells its rows apart by it"
            )
    return tuple(run.facts[key] for key in table.keys)


def results_of(table: Table, entries: Sequence[Entry], miniature: bool) -> list[Result]:
    """The paper's rows in its order, then those that only runs have, by method and depth."""
    found = {
        tuple(row.facts.get(key, rank) for key in table.keys): Result(table, row, [], miniature)
        for rank, row in enumerate(table.rows)
    }
    for entry in sorted(entries, key=_order):
        key = key_of(table, entry.run)
        row = Row(dict(zip(table.keys, key, strict=True)), {})
        found.setdefault(key, Result(table, row, [], miniature)).entries.append(entry)
    return list(found.values())


def _order(entry: Entry) -> list:
    """By the table's keys, then by seed and name."""
    facts = [*key_of(entry.table, entry.run), entry.run.seed or 0, entry.name]
    return [(isinstance(fact, str), fact) for fact in facts]
