"""Recorded runs with what a table tells of them; rows of a report, each the runs that differ in their seed alone."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from ...core.methods import METHODS
from ...errors import UserError
from ..runs import RecordedRun
from ..style import style_of
from .definitions import DEPTH, Row, Table, number_at

NAMES = {"python": "Python", "torch": "PyTorch", "sacrebleu": "sacreBLEU"}  # of packages, where the usual one differs
Published = float | str | None  # a number, "diverged", or None: not given
Read = Callable[[dict], float | None]  # of a score


class State(StrEnum):
    """What a cell says of a run without a number; SCORED has one."""

    SCORED = "scored"
    UNSCORED = "not scored"
    IN_PART = "scored in part"
    RUNNING = "running"
    DIVERGED = "diverged"
    STUCK = "stuck"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class RunStatus:
    """How far a run has come. update: at which it diverged, or up to which it has come."""

    state: State
    update: int | None = None

    def __str__(self) -> str:
        if self.state is State.DIVERGED and self.update is not None:
            return f"diverged at update {self.update}"
        if self.state is State.STUCK:
            return "stuck (at the frequencies of words)"
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
        return self.run.name if len(self.table.folders) == 1 else self.run.address

    @property
    def miniature(self) -> bool:
        """Was it trained on generated data, in a few updates? The scripts write "smoke" into its run.json."""
        return self.run.facts.get("smoke") is True

    @property
    def key(self) -> tuple:
        """What run.json says under the table's keys; UserError if one is not there."""
        table, facts = self.table, self.run.facts
        if "system" in facts:  # trained elsewhere, and scored here
            facts = facts | {"method": facts["system"]}
        for key in filter(None, (*table.keys, table.tuned)):
            if not isinstance(facts.get(key), (str, int)):
                raise UserError(f"{self.run.where()}: {key} is missing; table {table.name} tells its rows apart by it")
        return tuple(facts[key] for key in table.keys)

    @cached_property
    def status(self) -> RunStatus:
        """A score counts only once the training is over, and if no direction of the corpus is missing in it."""
        run = self.run
        if run.ended_in_nan:
            return RunStatus(State.DIVERGED, run.diverged_at)
        if run.stuck:
            return RunStatus(State.STUCK)
        if not run.finished:
            return RunStatus(State.RUNNING, self.updates or 0)
        if run.score is None:
            return RunStatus(State.UNSCORED)
        return RunStatus(State.IN_PART if run.score.get("missing") else State.SCORED)

    @cached_property
    def score(self) -> dict:
        """Empty unless the run is over and scored; UserError if a score has nothing of what the table asks for."""
        score = (self.run.score or {}) if self.status.state is State.SCORED else {}
        if score and all(column.read(score) is None for column in self.table.columns):
            asked = " or ".join(f'"{column.path}"' for column in self.table.columns)
            raise UserError(f"{self.run.where('score')}: holds no number {asked}; score the run again")
        return score

    @cached_property
    def updates(self) -> int | None:
        """The last update that its log names; None before the first."""
        try:
            return self.run.log.updates[-1]
        except UserError:
            return None

    @property
    def cost(self) -> tuple[float, str] | None:
        """Hours of wall time times GPUs, "GPU"; on a CPU those of wall time, "CPU"; None if either is not recorded."""
        gpus, hours = self.run.environment.get("gpus"), self.run.hours
        if hours is None or not isinstance(gpus, int):
            return None
        return (hours * gpus, "GPU") if gpus else (hours, "CPU")

    @cached_property
    def parameters(self) -> int | None:
        """Of its model, by run.json or the log; None where fairseq counts one of several shards, or nothing is said."""
        known = self.run.facts.get("parameters")
        if isinstance(known, int):
            return known
        return None if "fully_sharded" in (self.run.command or "") else self.run.parameters


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


@dataclass(frozen=True)
class Cell:
    """One measured number over the seeds of its runs, beside the published one, both in the metric's unit.

    outcomes: a run's status, with its value if it has one. published: number, "diverged", or None: not given.
    """

    outcomes: tuple[tuple[RunStatus, float | None], ...]
    published: Published = None

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
        if self.mean is not None and isinstance(self.published, (int, float)):
            return self.mean - self.published
        return None

    @property
    def without_value(self) -> list[RunStatus]:
        """Of the runs that add nothing to the mean; a run scored without this number counts as not scored."""
        statuses = (status for status, value in self.outcomes if value is None)
        return [RunStatus(State.UNSCORED) if s.state is State.SCORED else s for s in statuses]

    @property
    def state(self) -> State:
        """SCORED if any run is; else the first of running, in part, not scored, diverged, stuck; or NOT_RUN."""
        if self.values:
            return State.SCORED
        states = [status.state for status in self.without_value]
        ranked = (State.RUNNING, State.IN_PART, State.UNSCORED, State.DIVERGED, State.STUCK)
        return next((state for state in ranked if state in states), State.NOT_RUN)

    def __str__(self) -> str:
        """As "27.53 ± 0.12, n=3, diverged at update 400"."""
        parts = [f"{self.mean:.2f}"] if self.mean is not None else []
        if self.sd is not None:
            parts = [f"{parts[0]} ± {self.sd:.2f}, n={len(self.values)}"]
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
        return {c.key: _cell(c.read, self.best, self.row.published.get(c.key)) for c in self.table.columns}

    def beside(self, metric: str) -> Cell:
        """Another metric of score.json, as sacrebleu or chrf."""
        return _cell(lambda score: number_at(score, f"{metric}.score"), self.best)

    @property
    def parameters(self) -> int | None:
        """Of the first of its runs that tells; None if none does."""
        return next((entry.parameters for entry in self.entries if entry.parameters), None)

    @property
    def letters(self) -> list[str]:
        """Those of the environments that its runs were trained in."""
        return sorted({entry.environment for entry in self.entries}, key=lambda letter: (len(letter), letter))


def _cell(read: Read, entries: list[Entry], published: Published = None) -> Cell:
    return Cell(tuple((entry.status, read(entry.score)) for entry in entries), published)


def results_of(table: Table, entries: Sequence[Entry]) -> list[Result]:
    """The paper's rows and those that only runs have: models in the paper's order, then others; each by its depth."""
    found = {tuple(row.facts.get(key, n) for key in table.keys): Result(table, row) for n, row in enumerate(table.rows)}

    def order(entry: Entry) -> list:
        facts = [*entry.key, entry.run.seed or 0, entry.name]
        return [(isinstance(fact, str), fact) for fact in facts]

    for entry in sorted(entries, key=order):
        row = Row(dict(zip(table.keys, entry.key, strict=True)), {})
        found.setdefault(entry.key, Result(table, row)).entries.append(entry)
    return shallow_first(found.values(), lambda result: (result.label, *result.others))


def shallow_first(results: Iterable[Result], group: Callable[[Result], object]) -> list[Result]:
    """Groups in the order of their first, from shallow to deep within each."""
    results = list(results)
    groups = list(dict.fromkeys(map(group, results)))
    return sorted(results, key=lambda result: (groups.index(group(result)), result.layers or 0))
