"""A recorded run with what a table tells of it: how far it has come, its score, what it was trained with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from ...errors import UserError
from .. import logs
from ..recorded_run import RecordedRun
from .tables import Table

NAMES = {"python": "Python", "torch": "PyTorch", "sacrebleu": "sacreBLEU"}  # of packages, where the usual one differs


class State(StrEnum):
    """What a cell says of a run without a number; SCORED has one."""

    SCORED = "scored"
    UNSCORED = "not scored"
    IN_PART = "scored in part"
    RUNNING = "running"
    DIVERGED = "diverged"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Standing:
    """How far a run has come. update: at which it diverged, or up to which it has come."""

    state: State
    update: int | None = None

    def __str__(self) -> str:
        if self.state is State.DIVERGED and self.update is not None:
            return f"diverged at update {self.update}"
        return f"running (update {self.update})" if self.state is State.RUNNING else self.state.value


@dataclass
class Entry:
    """One run. environment: its letter; p: of the paired test against the run `baseline`, None if none was made."""

    table: Table
    run: RecordedRun
    environment: str = ""
    baseline: str | None = None
    p: float | None = None

    @property
    def name(self) -> str:
        """Of its folder; with the experiment's where a table reads several."""
        folder = self.run.folder
        return folder.name if len(self.table.folders) == 1 else f"{folder.parent.name}/{folder.name}"

    @property
    def miniature(self) -> bool:
        """Was it trained on generated data, in a few updates? The scripts write "smoke" into its run.json."""
        return self.run.facts.get("smoke") is True

    @property
    def key(self) -> tuple:
        """What run.json says under the table's keys; UserError if one is not there."""
        table, facts = self.table, self.run.facts
        for key in filter(None, (*table.keys, table.tuned)):
            if not isinstance(facts.get(key), (str, int)):
                path = self.run.folder / "run.json"
                raise UserError(f"{path}: {key} is missing; table {table.name} tells its rows apart by it")
        return tuple(facts[key] for key in table.keys)

    @cached_property
    def standing(self) -> Standing:
        """A score counts only once the training is over, and if no direction of the corpus is missing in it."""
        run = self.run
        if run.ended_in_nan:
            return Standing(State.DIVERGED, run.diverged_at)
        if not run.finished:
            return Standing(State.RUNNING, self.updates or 0)
        if run.score is None:
            return Standing(State.UNSCORED)
        return Standing(State.IN_PART if run.score.get("missing") else State.SCORED)

    @cached_property
    def score(self) -> dict:
        """Empty unless the run is over and scored; UserError if a score has nothing of what the table asks for."""
        score = (self.run.score or {}) if self.standing.state is State.SCORED else {}
        if score and all(column.read(score) is None for column in self.table.columns):
            asked = " or ".join(f'"{column.path}"' for column in self.table.columns)
            raise UserError(f"{self.run.folder / 'score.json'}: holds no number {asked}; score the run again")
        return score

    @cached_property
    def updates(self) -> int | None:
        """The last update that its log names; None before the first."""
        try:
            return self.run.log.updates[-1]
        except UserError:
            return None

    @cached_property
    def wall_hours(self) -> float | None:
        """Hours of training, all attempts together; None if the log does not tell."""
        return logs.training_hours(self.run.folder / "train.log")

    @property
    def cost(self) -> tuple[float, str] | None:
        """Hours of wall time times GPUs, "GPU"; on a CPU those of wall time, "CPU"; None if either is not recorded."""
        gpus = self.run.environment.get("gpus")
        if self.wall_hours is None or not isinstance(gpus, int):
            return None
        return (self.wall_hours * gpus, "GPU") if gpus else (self.wall_hours, "CPU")

    @property
    def command(self) -> str | None:
        """How it was trained; None if that was not recorded."""
        path = self.run.folder / "command"
        return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else None

    @cached_property
    def parameters(self) -> int | None:
        """Of its model, by run.json or the log; None where fairseq counts one of several shards, or nothing is said."""
        known = self.run.facts.get("parameters")
        if isinstance(known, int):
            return known
        return None if "fully_sharded" in (self.command or "") else logs.parameters(self.run.folder / "train.log")


def beside(score: dict, metric: str, key: str = "score") -> float | None:
    """The number of a further metric, None where it was not measured."""
    found = score.get(metric)
    value = found.get(key) if isinstance(found, dict) else None
    return float(value) if isinstance(value, (int, float)) else None


def environment_of(run: RecordedRun) -> dict:
    """Of environment.json: commit, modified, versions and hardware; not when or on how many GPUs it ran."""
    found = run.environment
    versions = found.get("versions")
    return {
        "commit": found.get("commit"),
        "modified": bool(found.get("modified")),
        "versions": versions if isinstance(versions, dict) else {},
        "hardware": found.get("hardware"),
    }


def described(environment: dict) -> str:
    """An environment in one line."""
    if not environment["commit"] and not environment["versions"] and not environment["hardware"]:
        return "environment not recorded"
    modified = " (modified)" if environment["modified"] else ""
    parts = [f"commit {environment['commit'] or 'not recorded'}{modified}"]
    parts += [f"{NAMES.get(name, name)} {version}" for name, version in environment["versions"].items()]
    return f"{', '.join(parts)}; {environment['hardware'] or 'hardware not recorded'}"
