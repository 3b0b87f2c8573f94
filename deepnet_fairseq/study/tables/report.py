"""`deepnet report`: recorded runs beside the numbers of a paper's table, as one Markdown page.

A Result is a row, its Entries the runs that differ in their seed alone.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from ...errors import UserError
from ...files import check_file, whole
from ...text_table import escape, markdown
from ..plots import style_of
from ..runs import RecordedRun, recorded_below
from .definitions import DEPTH, TABLES, Column, Row, Table, number_at

DASH, MINUS = "–", "−"
BANNER = "Miniature on generated data: numbers say nothing about the paper's."
FURTHER = {"sacreBLEU": "sacrebleu", "chrF": "chrf", "spBLEU": "spbleu", "TER": "ter"}  # by their keys in score.json
SIGNED = {"tokenised": "tokenised BLEU", "m2m": "BLEU by M2M-100's protocol"} | {k: name for name, k in FURTHER.items()}
NAMES = {"python": "Python", "torch": "PyTorch", "sacrebleu": "sacreBLEU"}  # of packages, where the usual one differs
SCORED, UNSCORED = "scored", "not scored"
Published = float | str | None  # a number, "diverged", or None: not given
Rows = list[list[str]]


@dataclass
class Entry:
    """One run of a table."""

    table: Table
    run: RecordedRun

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
        """Return the values of run.json under the table's keys; raise UserError if one is missing."""
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
    def cost(self) -> str:
        """Wall time times GPUs, or on a CPU wall time, as "0.042 GPU-hours"; a dash if either is not recorded."""
        gpus, hours = self.run.environment.get("gpus"), self.run.hours
        if hours is None or not isinstance(gpus, int):
            return DASH
        value = hours * (gpus or 1)
        return f"{value:.{3 if value < 0.1 else 2 if value < 10 else 0}f} {'GPU' if gpus else 'CPU'}-hours"


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

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Key of a column -> its measured and its published number."""
        return {c.key: cell_of(c, self.best, self.row.published.get(c.key)) for c in self.table.columns}


def cell_of(column: Column, entries: list[Entry], published: Published = None) -> Cell:
    """Return the column's number of these runs."""
    found = [(entry.status, column.read(entry.score)) for entry in entries]
    values = [value for _, value in found if value is not None]
    return Cell(values, [UNSCORED if s == SCORED else s for s, value in found if value is None], published)


@dataclass
class TableReport:
    """A table with its runs. environments: what they were trained with, each once."""

    table: Table
    runs: Path
    results: list[Result]
    warnings: list[str]
    miniature: bool
    environments: list[dict]

    @property
    def entries(self) -> list[Entry]:
        """All runs, those of one result together."""
        return [entry for result in self.results for entry in result.entries]


def collect(runs: Path, table: Table) -> TableReport:
    """Read RUNS/EXPERIMENT/*; UserError if no run is there, or one is broken. A miniature has no rows without runs."""
    found = [run for folder in table.folders for run in recorded_below(runs / folder)]
    if not found:
        raise UserError(f"{runs / table.folders[0]}: holds no runs; record some with {table.script} (OUT={runs})")
    entries = [Entry(table, run) for run in found]
    miniature = any(entry.miniature for entry in entries)
    results = [result for result in _results(table, entries) if result.entries or not miniature]
    environments: list[dict] = []
    for environment in (environment_of(entry.run) for result in results for entry in result.entries):
        environments += [environment] * (environment not in environments)
    return TableReport(table, runs, results, list(_caveats(table, entries)), miniature, environments)


def _results(table: Table, entries: Sequence[Entry]) -> list[Result]:
    """Return the paper's rows, then those that only runs have: models in the paper's order, each by depth."""
    found = {tuple(row.facts.get(key, n) for key in table.keys): Result(table, row) for n, row in enumerate(table.rows)}

    def order(entry: Entry) -> list:
        facts = [*entry.key, entry.run.seed or 0, entry.name]
        return [(isinstance(fact, str), fact) for fact in facts]

    for entry in sorted(entries, key=order):
        row = Row(dict(zip(table.keys, entry.key, strict=True)), {})
        found.setdefault(entry.key, Result(table, row)).entries.append(entry)
    return _shallow_first(found.values(), with_label=True)


def _shallow_first(results: Iterable[Result], with_label: bool) -> list[Result]:
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


def markdown_page(report: TableReport, out: Path | None = None) -> str:
    """Return the Markdown page. out: the file it is for: links to logs are relative to its folder, or else to RUNS."""
    table, start = report.table, (out.resolve().parent if out else report.runs.resolve())
    parts = [
        f"# {escape(table.place)}: {escape(table.title)}",
        f"Beside {escape(table.place)} of {escape(table.paper['citation'])}: <{table.paper['url']}>",
        *([f"> **{escape(BANNER)}**"] if report.miniature else []),
        *(f"> **Warning:** {escape(warning)}" for warning in report.warnings),
    ]
    several = "over several seeds mean ± standard deviation of the sample"
    for title, caption, rows in (
        ("Overview", f"{table.metric.name}: measured (published); {several}", _overview(report)),
        ("Runs", "one row a training", _runs(report, start)),
    ):
        parts += [f"## {title}", escape(caption), markdown(rows)] if len(rows) > 1 else []
    parts += ["## Notes", "\n".join(f"- {escape(note)}" for note in _notes(report)), "Trained with:"]
    parts.append("\n".join(f"{n}. {escape(described(e))}" for n, e in enumerate(report.environments, 1)))
    return "\n\n".join(parts) + "\n"


def _overview(report: TableReport) -> Rows:
    """Methods by depths where the table is a grid, else rows by columns; a cell: measured (published)."""
    table = report.table
    if table.grid:
        found = {(result.label, result.depth): result for result in report.results}
        depths = list(dict.fromkeys(result.depth for result in _shallow_first(report.results, with_label=False)))
        key, labels = table.columns[0].key, dict.fromkeys(result.label for result in report.results)
        rows = [[label, *(_cell(found.get((label, depth)), key) for depth in depths)] for label in labels]
        return [["method", *map(escape, depths)], *rows]
    deep = [result.layers for result in report.results] if DEPTH[1] in table.keys else []
    names = ["model", *table.others, *["layers"] * bool(deep), *filter(None, [table.tuned])]
    rows = [[*names, *(column.name for column in table.columns)]]
    for result in report.results:
        row = [escape(result.label), *(escape(value) or DASH for value in result.others)]
        row += [str(result.layers)] if deep else []
        if table.tuned:
            values = {str(entry.run.facts[table.tuned]) for entry in result.best}
            row.append(values.pop() if len(values) == 1 else DASH)
        rows.append([*row, *(_cell(result, key) for key in result.cells)])
    return rows


def _cell(result: Result | None, key: str) -> str:
    """Measured (published)."""
    if result is None:
        return "not run"
    cell, measured = result.cells[key], str(result.cells[key]) if result.method else DASH
    if cell.published is None:
        return measured if result.method else f"{DASH} ({DASH})"
    return f"{measured} ({cell.published})"


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}".replace("-", MINUS)


def _further_metrics(report: TableReport) -> dict[str, str]:
    """Return those of FURTHER that some run has and no column of the table is of."""
    paths = {column.path for column in report.table.columns}
    found = {name: key for name, key in FURTHER.items() if f"{key}.score" not in paths}
    return {n: k for n, k in found.items() if any(number_at(e.score, f"{k}.score") is not None for e in report.entries)}


def _runs(report: TableReport, start: Path) -> Rows:
    """Every run: how it stands, its scores, what it took, with what it was trained."""
    table, metrics = report.table, _further_metrics(report)
    header = ["run", "method", "layers" if DEPTH[1] in table.keys else "row", *filter(None, [table.tuned]), "seed"]
    header += ["state", *(column.name for column in table.columns), *(f"{name} [95%]" for name in metrics)]
    rows = [list(map(escape, [*header, "updates", "cost", "trained with", "log"]))]
    for result in report.results:
        for entry in result.entries:
            path, facts = entry.run.log_file, entry.run.facts
            link = quote(Path(os.path.relpath(path.resolve(), start)).as_posix())
            rows.append([
                escape(entry.name), escape(result.label), escape(result.depth),
                *(str(facts.get(key, DASH)) for key in filter(None, [table.tuned])),
                DASH if entry.run.seed is None else str(entry.run.seed), entry.status,
                *(_number(column.read(entry.score)) for column in table.columns),
                *(_interval(entry.score, key) for key in metrics.values()),
                DASH if entry.updates is None else str(entry.updates), entry.cost,
                str(report.environments.index(environment_of(entry.run)) + 1),
                f"[log]({link})" if path.exists() else DASH,
            ])  # fmt: skip
    return rows


def _interval(score: dict, metric: str) -> str:
    """A score with its 95% bootstrap interval, as "27.53 [26.90, 28.14]"."""
    value, mean, half = (number_at(score, f"{metric}.{key}") for key in ("score", "mean", "ci"))
    if value is None or half is None:
        return _number(value)
    middle = value if mean is None else mean
    return escape(f"{value:.2f} [{middle - half:.2f}, {middle + half:.2f}]")


def _notes(report: TableReport) -> list[str]:
    """Explain how to read the tables, and how their numbers were computed."""
    better = "Higher" if report.table.metric.higher_is_better else "Lower"
    found = [
        f"In parentheses the published number, of {report.table.place}; no parentheses where the paper gives none. "
        f'"not run": no run was recorded. {better} is better.',
        *report.table.notes,
    ]
    if _further_metrics(report):
        found.append("In brackets the 95% interval of 1,000 bootstrap samples of the test set.")
    if any(entry.cost != DASH for entry in report.entries):
        found.append(
            "Cost: wall time of the training, all its attempts, times its GPUs; on a CPU wall time alone. "
            "Translating and scoring are not in it."
        )
    signatures = {pair for entry in report.entries for pair in _signatures(entry.score) if pair[0] in SIGNED}
    return found + [f"Signature of {SIGNED[name]}: {text}" for name, text in sorted(signatures)]


def _signatures(score: dict) -> Iterator[tuple[str, str]]:
    """Yield metric and signature, at any depth of a score."""
    for key, value in score.items():
        if isinstance(value, dict):
            if value.get("signature") and isinstance(value["signature"], str):
                yield key, value["signature"]
            yield from _signatures(value)


def render_report(runs: Path, table: str, out: Path | None = None) -> str:
    """Return the page of a table, and write it to `out`. The same runs give the same bytes.

    Raise UserError for an unknown table, for runs that are not there or broken, and for a path not to be written.
    """
    if table not in TABLES:
        raise UserError(f"--table {table}: no such table; choose one of {', '.join(TABLES)}")
    if out:
        check_file("--out", out)
    text = markdown_page(collect(runs, TABLES[table]), out)
    if out:
        with whole(out) as part:
            part.write_text(text, encoding="utf-8")
    return text
