"""Rows of a table from recorded runs: each holds runs that differ in their seed alone, beside the published number."""

from __future__ import annotations

import shlex
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from string import ascii_lowercase

from ...core.methods import METHODS
from ...errors import UserError
from ..plots import style_of
from ..runs import MEND, RecordedRun, recorded_below
from .definitions import DEPTH, Column, Row, Table

NAMES = {"python": "Python", "torch": "PyTorch", "sacrebleu": "sacreBLEU"}  # of packages, where the usual one differs
SCORED, UNSCORED = "scored", "not scored"
Published = float | str | None  # a number, "diverged", or None: not given


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
        """Name of its folder, behind the experiment's where a table reads several."""
        return self.run.name if len(self.table.folders) == 1 else self.run.address

    @property
    def miniature(self) -> bool:
        """Whether it was trained on generated data; the scripts write "smoke" into its run.json."""
        return self.run.facts.get("smoke") is True

    @property
    def key(self) -> tuple:
        """Return the values of run.json under the table's keys; UserError if one is missing."""
        table, facts = self.table, self.run.facts
        if "system" in facts:  # trained elsewhere, and scored here
            facts = facts | {"method": facts["system"]}
        for key in filter(None, (*table.keys, table.tuned)):
            if not isinstance(facts.get(key), (str, int)):
                raise UserError(f"{self.run.where()}: {key} is missing; table {table.name} tells its rows apart by it")
        return tuple(facts[key] for key in table.keys)

    @cached_property
    def status(self) -> str:
        """Return the state of the run. A score counts once the training is over and no direction is missing."""
        run = self.run
        if run.ended_in_nan:
            return "diverged" if run.diverged_at is None else f"diverged at update {run.diverged_at}"
        if run.stuck:
            return "stuck (at the frequencies of words)"
        if not run.finished:
            return f"running (update {self.updates or 0})"
        if run.score is None:
            return UNSCORED
        return "scored in part" if run.score.get("missing") else SCORED

    @cached_property
    def score(self) -> dict:
        """Content of score.json, empty unless the run is scored; UserError if it lacks all that the table asks for."""
        score = (self.run.score or {}) if self.status == SCORED else {}
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
        """Parameters of its model, by run.json or the log; None where fairseq counts one of several shards."""
        known = self.run.facts.get("parameters")
        if isinstance(known, int):
            return known
        return None if "fully_sharded" in (self.run.command or "") else self.run.parameters


def environment_of(run: RecordedRun) -> dict:
    """Return commit, modified, versions and hardware; not when or on how many GPUs it ran."""
    found = run.environment
    versions = found.get("versions")
    return {
        "commit": found.get("commit"),
        "modified": bool(found.get("modified")),
        "versions": versions if isinstance(versions, dict) else {},
        "hardware": found.get("hardware"),
    }


def described(environment: dict) -> str:
    """Describe an environment in one line."""
    if not environment["commit"] and not environment["versions"] and not environment["hardware"]:
        return "environment not recorded"
    modified = " (modified)" if environment["modified"] else ""
    parts = [f"commit {environment['commit'] or 'not recorded'}{modified}"]
    parts += [f"{NAMES.get(name, name)} {version}" for name, version in environment["versions"].items()]
    return f"{', '.join(parts)}; {environment['hardware'] or 'hardware not recorded'}"


@dataclass(frozen=True)
class Cell:
    """One number over the seeds of its runs, beside the published one. others: how the runs without one stand."""

    values: Sequence[float]
    others: Sequence[str]
    published: Published = None

    @property
    def mean(self) -> float | None:
        """Mean over the seeds; None without values."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def difference(self) -> float | None:
        """Measured minus published, where both are numbers."""
        if self.mean is not None and isinstance(self.published, (int, float)):
            return self.mean - self.published
        return None

    def __str__(self) -> str:
        """Format as "27.53 ± 0.12, n=3, diverged at update 400"; the deviation is the sample's."""
        parts = [f"{self.mean:.2f}"] if self.mean is not None else []
        if len(self.values) > 1:
            parts = [f"{parts[0]} ± {statistics.stdev(self.values):.2f}, n={len(self.values)}"]
        counts = Counter(self.others)
        parts += [text if count == 1 else f"{text}, n={count}" for text, count in counts.items()]
        return ", ".join(parts) or "not run"


@dataclass
class Result:
    """A row of the paper or, without published numbers, of runs that the paper does not have.

    entries: its runs, which differ in their seed and, in a tuned table, in what was searched over.
    """

    table: Table
    row: Row
    entries: list[Entry] = field(default_factory=list)

    @property
    def method(self) -> str | None:
        """Its method; None for a system that is not trained here."""
        return self.row.facts.get("method")

    @property
    def label(self) -> str:
        """The system as the paper names it, else the method's name in figures and tables."""
        return self.row.label or style_of(str(self.method)).label

    @property
    def depth(self) -> str:
        """Depth as "18L-18L", behind what else the table's rows differ by."""
        if not self.row.facts:
            return str(self.row.layers)
        layers = [f"{self.row.facts[key]}L" for key in DEPTH[1:] if key in self.table.keys]
        return " ".join([*self.others, "-".join(layers)]).strip()

    @property
    def others(self) -> list[str]:
        """Name what distinguishes this row from others of the same method and depth."""
        return [str(self.row.facts.get(key, "")) for key in self.table.others]

    @property
    def layers(self) -> int | None:
        """Layers of encoder and decoder together; None in a table that does not tell rows apart by them."""
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
        sign = 1 if self.table.metric.higher_is_better else -1
        means = {value: cell_of(self.table.columns[0], entries).mean for value, entries in groups.items()}
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
        return {c.key: cell_of(c, self.best, self.row.published.get(c.key)) for c in self.table.columns}

    @property
    def parameters(self) -> int | None:
        """Parameters of the first of its runs that tells; None if none does."""
        return next((entry.parameters for entry in self.entries if entry.parameters), None)


def cell_of(column: Column, entries: list[Entry], published: Published = None) -> Cell:
    """Return the column's number of these runs."""
    found = [(entry.status, column.read(entry.score)) for entry in entries]
    values = [value for _, value in found if value is not None]
    return Cell(values, [UNSCORED if s == SCORED else s for s, value in found if value is None], published)


@dataclass
class TableReport:
    """A table with its runs. environments: letter -> what runs were trained with; baseline: "" for none."""

    table: Table
    runs: Path
    results: list[Result]
    warnings: list[str]
    miniature: bool
    baseline: str
    environments: dict[str, dict] = field(default_factory=dict)

    @property
    def entries(self) -> list[Entry]:
        """All runs, those of one result together."""
        return [entry for result in self.results for entry in result.entries]


def collect(runs: Path, table: Table, baseline: str | None = None, over: bool = False) -> TableReport:
    """Read RUNS/EXPERIMENT/*; UserError if no run is there, or one is broken. A miniature has no rows without runs.

    baseline: method that the others are compared with at the same depth; "" compares none, None is the table's own.
    over: see recorded_below.
    """
    if baseline and baseline not in METHODS:
        raise UserError(f"--baseline {baseline}: no such method; see `deepnet methods`")
    found = [run for folder in table.folders for run in recorded_below(runs / folder, over)]
    if not found:
        raise UserError(f"{runs / table.folders[0]}: holds no runs; record some with {table.script} (OUT={runs})")
    entries = [Entry(table, run) for run in found]
    baseline = table.baseline if baseline is None else baseline
    _compare(entries, baseline)
    miniature = any(entry.miniature for entry in entries)
    results = [result for result in _results(table, entries) if result.entries or not miniature]
    report = TableReport(table, runs, results, list(_caveats(table, entries)), miniature, baseline)
    for entry in report.entries:
        environment = environment_of(entry.run)
        again, rank = divmod(len(report.environments), len(ascii_lowercase))  # a to z, then aa, bb and so on
        letters = (letter for letter, known in report.environments.items() if known == environment)
        entry.environment = next(letters, ascii_lowercase[rank] * (again + 1))
        report.environments[entry.environment] = environment
    return report


def _results(table: Table, entries: Sequence[Entry]) -> list[Result]:
    """Return the paper's rows, then those that only runs have: models in the paper's order, each by depth."""
    found = {tuple(row.facts.get(key, n) for key in table.keys): Result(table, row) for n, row in enumerate(table.rows)}

    def order(entry: Entry) -> list:
        facts = [*entry.key, entry.run.seed or 0, entry.name]
        return [(isinstance(fact, str), fact) for fact in facts]

    for entry in sorted(entries, key=order):
        row = Row(dict(zip(table.keys, entry.key, strict=True)), {})
        found.setdefault(entry.key, Result(table, row)).entries.append(entry)
    return shallow_first(found.values(), with_label=True)


def shallow_first(results: Iterable[Result], with_label: bool) -> list[Result]:
    """Order from shallow to deep within each group, groups by their first; a group: label, if asked for, and others."""
    results = list(results)
    groups = {id(one): (one.label if with_label else "", *one.others) for one in results}
    ranks = list(dict.fromkeys(groups.values()))
    return sorted(results, key=lambda result: (ranks.index(groups[id(result)]), result.layers or 0))


def _caveats(table: Table, entries: list[Entry]) -> Iterator[str]:
    """Yield what keeps the numbers from meaning what they seem to, a line each, with the runs by name."""
    modified = [entry.name for entry in entries if entry.run.environment.get("modified")]
    if modified:
        yield f"trained from a modified working tree, so the commit does not tell all: {', '.join(modified)}"
    twins: dict[tuple, list[str]] = {}
    for entry in entries:
        twins.setdefault((*entry.key, entry.run.facts.get(table.tuned), entry.run.seed), []).append(entry.name)
    for names in twins.values():
        if len(names) > 1:
            yield f"same row and same seed, yet counted as several: {', '.join(names)}"
    kind = table.metric.kind
    others = [f"{entry.name} ({entry.score['kind']})" for entry in entries if entry.score.get("kind", kind) != kind]
    if kind and others:
        yield f"the published numbers are {kind} BLEU, these are not: {', '.join(others)}"
    for key, text in (
        ("corpus", "trained and tested on the corpus {}, the paper's is {}"),
        ("batch_tokens", "an update has {} tokens, the paper's {}"),
    ):
        different: dict[tuple, list[str]] = {}
        for entry in entries:
            own, published = entry.run.facts.get(key), entry.run.facts.get(f"paper_{key}")
            if own and published and own != published and not entry.miniature:
                different.setdefault((own, published), []).append(entry.name)
        for values, names in different.items():
            yield f"{text.format(*values)}: {', '.join(names)}"
    if len({entry.miniature for entry in entries}) > 1:
        yield "miniatures and runs in full stand in one table"


def _compare(entries: Sequence[Entry], baseline: str) -> None:
    """Fill `baseline` and `p` of each run of another method; p stays None where there is nothing to compare.

    p is that of a paired bootstrap on the test set's sentences. Each run meets the baseline's run of the same row but
    for the method, with the same seed if there is one.
    """

    def place(entry: Entry) -> tuple:
        return tuple(value for key, value in zip(entry.table.keys, entry.key, strict=True) if key != "method")

    scored = [entry for entry in entries if entry.status == SCORED]
    for entry in scored:
        rivals = [other for other in scored if other.run.method == baseline and place(other) == place(entry)]
        if entry.run.method != baseline and rivals:
            rival = next((other for other in rivals if other.run.seed == entry.run.seed), rivals[0])
            entry.baseline, entry.p = rival.name, _p(rival.run, entry.run)


def _p(rival: RecordedRun, run: RecordedRun) -> float | None:
    """Return the recorded p, or test the translations if both are kept, and the corpus, for its references."""
    from ..scoring import compare_to_baseline

    p = run.paired.get(rival.address)
    if p is not None:
        if not isinstance(p, (int, float)):
            raise UserError(f"{run.where('paired')}: p against {rival.address} is {p!r}, no number; {MEND}")
        return p
    with suppress(UserError, OSError, ValueError, IndexError):  # as where translations were not kept
        data = shlex.split(run.command or "")[1]
        if data == shlex.split(rival.command or "")[1] and Path(data.split(":")[0]).is_dir():
            return compare_to_baseline(rival.place, run.place, data)
    return None
