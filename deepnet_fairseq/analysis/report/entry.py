"""A run with what a table tells of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...errors import UserError
from ..recorded_run import RecordedRun
from .environment import cost
from .model_size import parameters
from .standing import Standing, State, updates
from .table import Table
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
        """How far the run has come."""
        return Standing.of(self.run)

    @cached_property
    def score(self) -> dict:
        """Empty unless the run is over and scored; UserError if a score has nothing of what the table asks for."""
        score = (self.run.score or {}) if self.standing.state is State.SCORED else {}
        if score and all(column.read(score) is None for column in self.table.columns):
            asked = " or ".join(f'"{".".join(column.path)}"' for column in self.table.columns)
            raise UserError(f"{self.run.folder / 'score.json'}: holds no number {asked}; score the run again")
        return score

    @cached_property
    def updates(self) -> int | None:
        """The last update that its log names; None before the first."""
        return updates(self.run)

    @cached_property
    def wall_hours(self) -> float | None:
        """Hours of training, all attempts together; None if the log does not tell."""
        return training_hours(self.run.folder / "train.log")

    @property
    def cost(self) -> tuple[float, str] | None:
        """Hours, and "GPU" or "CPU"; None if they are not recorded."""
        return cost(self.run, self.wall_hours)

    @cached_property
    def parameters(self) -> int | None:
        """Of its model; None if neither run.json nor the log says it."""
        return parameters(self.run)


def beside(score: dict, metric: str, key: str = "score") -> float | None:
    """The number of a further metric, None where it was not measured."""
    found = score.get(metric)
    value = found.get(key) if isinstance(found, dict) else None
    return float(value) if isinstance(value, (int, float)) else None


def key_of(table: Table, run: RecordedRun) -> tuple:
    """What run.json says under the table's keys; UserError if one is not there."""
    for key in (*table.keys, *[table.tuned] * bool(table.tuned)):
        if not isinstance(run.facts.get(key), (str, int)):
            raise UserError(
                f"{run.folder / 'run.json'}: {key} is missing; table {table.name} tells its rows apart by it"
            )
    return tuple(run.facts[key] for key in table.keys)
