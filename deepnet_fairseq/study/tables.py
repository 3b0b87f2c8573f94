"""Render `deepnet report`: recorded runs beside the numbers of a paper's table, as one Markdown page.

The published numbers stand in the files of experiments/. The table's keys tell its rows apart; runs that differ in
their seed alone share a row.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import UserError
from ..files import check_file, whole
from ..text_table import escape, markdown
from . import experiments, paper
from .plots import magnitude, number, style_of
from .runs import SCORED, UNSCORED, RecordedRun, recorded_below

DEPTH = ("encoder_layers", "decoder_layers")
POINTS = {  # figure of DeepNet -> layers of encoder and decoder, and each method's BLEU at these depths
    6: ([(n, n) for n in paper.FIGURE6_LAYERS], paper.FIGURE6),
    8: ([(d // 2, d // 2) for d in paper.FIGURE8["deepnorm"]], {"deepnorm": paper.FIGURE8["deepnorm"].values()}),
}
DASH = "–"
BANNER = "Miniature on generated data: do not compare its numbers with the paper's."
SIGNED = {  # part of score.json -> metric, in the notes
    "tokenised": "tokenised BLEU", "sacrebleu": "sacreBLEU", "spbleu": "spBLEU", "m2m": "BLEU by M2M-100's protocol",
    "ter": "TER",
}  # fmt: skip
PACKAGES = {"python": "Python", "torch": "PyTorch", "sacrebleu": "sacreBLEU"}  # package -> its usual name
Published = float | str  # a number or "diverged"


@dataclass(frozen=True)
class Table:
    """Table of a paper, or the numbers of a figure: an entry [[table]] of experiments/NAME.toml.

    name: for `deepnet report --table`; folders: of its runs, below RUNS; script: the script that records them; paper:
    its "citation" (authors, year and title) and "url"; place: of the numbers in the paper. metric: the name of the
    numbers; kind: of the published BLEU, one of scoring.KINDS, "" if the columns differ. columns: the head of each ->
    the path of its number in score.json, as "sets.test.bleu". keys: the keys of run.json that tell rows
    apart; searched: a further key, of a setting that was searched over, each value of which has a row. rows: values of
    `keys` -> head of a column -> published number, if the paper gives one. notes: paragraphs below the table.
    """

    name: str
    folders: Sequence[str]
    script: str
    title: str
    paper: Mapping[str, str]
    place: str
    metric: str
    columns: Mapping[str, str]
    rows: Mapping[tuple, Mapping[str, Published]]
    keys: Sequence[str]
    kind: str = ""
    higher_is_better: bool = True
    searched: str = ""
    notes: Sequence[str] = ()


def read_tables(content: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of a file of experiments, by name; their papers are those of paper.toml, or its own."""
    papers = paper.PAPERS | content.get("papers", {})
    return {fields["name"]: _table(papers, fields) for fields in content.get("table", ())}


def _table(papers: Mapping[str, Mapping[str, str]], entry: Mapping[str, Any]) -> Table:
    """Make the table of an entry: its numbers are `rows` under `head`, or those of the last column by depth."""
    fields = dict(entry)
    columns, keys = list(fields["columns"]), fields.get("keys", ("method", *DEPTH))
    head, rows, figure, across, values = (fields.pop(key, ()) for key in ("head", "rows", "figure", "across", "values"))
    if figure:
        across, values = POINTS[figure]
    given = [dict(zip(head, row, strict=True)) for row in rows]
    for method in values:
        for depth, value in zip(across, values[method], strict=True):
            given.append(dict(zip((*keys, columns[-1]), (method, *depth, value), strict=True)))
    published = {tuple(row[k] for k in keys): {c: row[c] for c in columns if row.get(c, "") != ""} for row in given}
    notes = [note.strip().format(error=paper.ERROR.get(figure, "")) for note in fields.get("notes", ())]
    return Table(**fields | {"paper": papers[fields["paper"]], "rows": published, "keys": keys, "notes": notes})


def _all() -> dict[str, Table]:
    tables: dict[str, Table] = {}
    for name in experiments.names():
        tables |= read_tables(experiments.read(name).content)
    return dict(sorted(tables.items()))


TABLES = _all()


def number_at(score: Mapping, path: str) -> float | None:
    """Return the number at the keys "a.b" in the content of score.json; None if it has none."""
    value: Any = score
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Cell:
    """Cell: one number over the seeds of its runs, beside the published one; others: the states of runs without one."""

    values: Sequence[float]
    others: Sequence[str]
    published: Published | None

    @property
    def mean(self) -> float | None:
        """Mean over the seeds; None without values."""
        return statistics.fmean(self.values) if self.values else None

    def __str__(self) -> str:
        """Format as "27.53 ± 0.12, n=3, diverged at update 400 (27.8)"; the deviation is the sample's."""
        parts = [f"{self.mean:.2f}"] if self.mean is not None else []
        if len(self.values) > 1:
            parts = [f"{parts[0]} ± {statistics.stdev(self.values):.2f}, n={len(self.values)}"]
        counts = Counter(self.others)
        parts += [text if count == 1 else f"{text}, n={count}" for text, count in counts.items()]
        theirs = "" if self.published is None else f" ({self.published})"
        return (", ".join(parts) or "not run") + theirs


@dataclass(frozen=True, eq=False)
class Result:
    """Row of a table: its runs, which differ in their seed, beside the paper's numbers; either may be missing.

    key: values of the table's keys; setting: the value of the setting that was searched over, if any.
    """

    table: Table
    key: tuple
    setting: str
    runs: list[RecordedRun]

    @property
    def facts(self) -> dict[str, Any]:
        """Return the table's keys with this row's values."""
        return dict(zip(self.table.keys, self.key, strict=True))

    @property
    def method(self) -> str:
        """Name of the method, or of a system that was trained elsewhere."""
        return self.facts["method"]

    @property
    def layers(self) -> int:
        """Layers of encoder and decoder together; 0 in a table whose rows do not differ in them."""
        return sum(self.facts.get(key, 0) for key in DEPTH)

    @property
    def words(self) -> list[str]:
        """Return the cells that identify the row: model, other keys, the setting searched over, depth as "18L-18L"."""
        facts = self.facts
        depth = "-".join(f"{facts[key]}L" for key in DEPTH if key in facts)
        others = [str(facts[key]) or DASH for key in _others(self.table)]
        cells = [style_of(self.method).label, *others]
        return cells + [self.setting or DASH] * bool(self.table.searched) + [depth] * bool(depth)

    def cell(self, column: str) -> Cell:
        """Return the number of a column."""
        pairs = [(run.state, number_at(score_of(self.table, run), self.table.columns[column])) for run in self.runs]
        values = [value for _, value in pairs if value is not None]
        others = [UNSCORED if state == SCORED else state for state, value in pairs if value is None]
        return Cell(values, others, self.table.rows.get(self.key, {}).get(column))


def _others(table: Table) -> list[str]:
    """Return the keys beside method and depth."""
    return [key for key in table.keys if key not in ("method", *DEPTH)]


def _head(table: Table) -> list[str]:
    """Return the heads of Result.words."""
    return ["model", *_others(table), *filter(None, [table.searched]), *["layers"] * (DEPTH[0] in table.keys)]


def _key(table: Table, run: RecordedRun) -> tuple[tuple, str]:
    """Return the values of the table's keys in run.json, and of the key searched over; UserError for a missing one."""
    facts = run.facts | ({"method": run.facts["system"]} if "system" in run.facts else {})  # trained elsewhere
    for key in filter(None, (*table.keys, table.searched)):
        if not isinstance(facts.get(key), (str, int)):
            raise UserError(f"{run.where()}: {key} is missing; table {table.name} tells its rows apart by it")
    return tuple(facts[key] for key in table.keys), str(facts.get(table.searched, ""))


def score_of(table: Table, run: RecordedRun) -> dict:
    """Return score.json's content if the run is scored, else {}; UserError if it has no number of the table."""
    score = (run.score or {}) if run.state == SCORED else {}
    if score and all(number_at(score, path) is None for path in table.columns.values()):
        asked = " or ".join(f'"{path}"' for path in table.columns.values())
        raise UserError(f"{run.where('score')}: holds no number {asked}; score the run again")
    return score


def _name(table: Table, run: RecordedRun) -> str:
    """Return the name of a run's folder, behind the experiment's if a table reads several."""
    return run.name if len(table.folders) == 1 else run.address


@dataclass(frozen=True)
class TableReport:
    """Table with its runs; environments: descriptions of the commits, versions and hardware of the runs, each once."""

    table: Table
    folder: Path
    results: list[Result]
    warnings: list[str]
    miniature: bool
    environments: list[str]

    @property
    def runs(self) -> list[RecordedRun]:
        """Return all runs, those of one row together."""
        return [run for result in self.results for run in result.runs]


def collect(folder: Path, table: Table) -> TableReport:
    """Read RUNS/EXPERIMENT/*; UserError if there is no run, or one is broken. A miniature has no rows without runs."""
    runs = [run for name in table.folders for run in recorded_below(folder / name)]
    if not runs:
        raise UserError(f"{folder / table.folders[0]}: holds no runs; record some with {table.script} (OUT={folder})")
    miniature = any(run.miniature for run in runs)
    results = [result for result in _results(table, runs) if result.runs or not miniature]
    environments = dict.fromkeys(described(run.environment) for result in results for run in result.runs)
    return TableReport(table, folder, results, list(_caveats(table, runs)), miniature, list(environments))


def _results(table: Table, runs: Sequence[RecordedRun]) -> list[Result]:
    """Return a result for each row: systems in the paper's order, then those of runs alone, each by depth."""
    groups: dict[tuple, list[RecordedRun]] = {}
    for run in sorted(runs, key=lambda run: (run.seed or 0, _name(table, run))):
        groups.setdefault(_key(table, run), []).append(run)
    recorded = sorted({key for key, _ in groups}, key=lambda key: [(isinstance(fact, str), fact) for fact in key])
    missing = {(key, ""): [] for key in table.rows if key not in recorded}
    results = [Result(table, key, setting, runs) for (key, setting), runs in (missing | groups).items()]

    def system(key: tuple) -> tuple:
        return tuple(fact for name, fact in zip(table.keys, key, strict=True) if name not in DEPTH)

    ranks = list(dict.fromkeys(map(system, [*table.rows, *recorded])))
    return sorted(results, key=lambda one: (ranks.index(system(one.key)), one.layers, magnitude(one.setting)))


def _caveats(table: Table, runs: Iterable[RecordedRun]) -> Iterator[str]:
    """Yield a line for each reason to read numbers with care, with the names of the runs."""
    by_text: dict[str, list[str]] = {}
    for run in runs:
        texts = []
        if run.environment.get("modified"):
            texts.append("trained from a modified working tree, so the commit does not tell all")
        kind = score_of(table, run).get("kind", table.kind)
        if table.kind and kind != table.kind:
            texts.append(f"the published numbers are {table.kind} BLEU, these are {kind}")
        for key, text in (
            ("corpus", "trained and tested on the corpus {}, the paper's is {}"),
            ("batch_tokens", "an update has {} tokens, the paper's {}"),
        ):
            own, published = run.facts.get(key), run.facts.get(f"paper_{key}")
            if own and published and own != published and not run.miniature:
                texts.append(text.format(own, published))
        for text in texts:
            by_text.setdefault(text, []).append(_name(table, run))
    yield from (f"{text}: {', '.join(names)}" for text, names in by_text.items())
    if len({run.miniature for run in runs}) > 1:
        yield "miniatures and runs in full stand in one table"


def described(environment: Mapping) -> str:
    """Describe in one line what a run was trained with: commit, versions and hardware."""
    commit, versions, hardware = (environment.get(key) for key in ("commit", "versions", "hardware"))
    versions = versions if isinstance(versions, dict) else {}
    parts = [f"commit {commit or 'not recorded'}{' (modified)' * bool(environment.get('modified'))}"]
    parts += [f"{PACKAGES.get(name, name)} {version}" for name, version in versions.items()]
    return f"{', '.join(parts)}; {hardware or 'hardware not recorded'}"


def markdown_page(report: TableReport, out: Path | None = None) -> str:
    """Return the Markdown page; out: its file, to whose folder links to logs are relative, or else to RUNS."""
    table, start = report.table, (out.resolve().parent if out else report.folder.resolve())
    overview = [[*_head(table), *table.columns]]
    overview += [[*result.words, *(str(result.cell(column)) for column in table.columns)] for result in report.results]
    parts = [
        f"# {escape(table.place)}: {escape(table.title)}",
        f"Compared with {escape(table.place)} of {escape(table.paper['citation'])}: <{table.paper['url']}>",
        *([f"> **{escape(BANNER)}**"] if report.miniature else []),
        *(f"> **Warning:** {escape(warning)}" for warning in report.warnings),
        "## Overview",
        escape(f"{table.metric}. Each cell is measured (published). Several seeds give mean ± standard deviation."),
        markdown([list(map(escape, row)) for row in overview]),
        "## Runs",
        "Each training has a row.",
        markdown(_runs(report, start)),
        "## Notes",
        "\n".join(f"- {escape(note)}" for note in _notes(report)),
        "Trained with:",
        "\n".join(f"{n}. {escape(environment)}" for n, environment in enumerate(report.environments, 1)),
    ]
    return "\n\n".join(parts) + "\n"


def _runs(report: TableReport, start: Path) -> list[list[str]]:
    """Return a row for each run: its state, scores and cost, and the number of its environment."""
    table = report.table
    head = ["run", *_head(table), "seed", "state", *table.columns, *["sacreBLEU [95%]"] * _tokenised(table)]
    rows = [list(map(escape, [*head, "updates", "cost", "trained with", "log"]))]
    for result in report.results:
        for run in result.runs:
            score = score_of(table, run)
            cells = [_name(table, run), *result.words, DASH if run.seed is None else str(run.seed), run.state]
            cells += [_number(number_at(score, path)) for path in table.columns.values()]
            cells += [_interval(score)] * _tokenised(table)
            cells += [DASH if run.updates is None else str(run.updates), _cost(run)]
            cells.append(str(report.environments.index(described(run.environment)) + 1))
            link = quote(Path(os.path.relpath(run.log_file.resolve(), start)).as_posix())
            rows.append([*map(escape, cells), f"[log]({link})" if run.log_file.exists() else DASH])
    return rows


def _tokenised(table: Table) -> bool:
    """Tell whether the BLEU is of the paper's own tokens, so that comparable sacreBLEU has to stand beside it."""
    return table.kind == "tokenised"


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"


def _interval(score: dict) -> str:
    """Return sacreBLEU's score with its 95% bootstrap interval, as "27.53 [26.90, 28.14]"."""
    value, mean, half = (number_at(score, f"sacrebleu.{key}") for key in ("score", "mean", "ci"))
    if value is None or mean is None or half is None:
        return _number(value)
    return f"{value:.2f} [{mean - half:.2f}, {mean + half:.2f}]"


def _cost(run: RecordedRun) -> str:
    """Return wall time times GPUs, or on a CPU wall time, as "0.042 GPU-hours"; a dash if either is not recorded."""
    gpus, hours = run.environment.get("gpus"), run.hours
    if hours is None or not isinstance(gpus, int):
        return DASH
    return f"{number(hours * (gpus or 1), 2)} {'GPU' if gpus else 'CPU'}-hours"


def _notes(report: TableReport) -> list[str]:
    """Explain how to read the tables, and how their numbers were computed."""
    better = "Higher" if report.table.higher_is_better else "Lower"
    signatures = {pair for run in report.runs for pair in _signatures(score_of(report.table, run))}
    return [
        f"Parentheses hold the published number ({report.table.place}); where there are none, the paper has no number. "
        f'"not run" means that no run was recorded. {better} is better.',
        *report.table.notes,
        *["Brackets hold the 95% interval from 1,000 bootstrap samples of the test set."] * _tokenised(report.table),
        "Cost is the wall time of all attempts of a training, times its number of GPUs if it ran on GPUs. "
        "It does not include translation and scoring.",
        *(f"Signature of {SIGNED[name]}: {text}" for name, text in sorted(signatures)),
    ]


def _signatures(score: dict) -> Iterator[tuple[str, str]]:
    """Yield metric and signature, at any depth of a score."""
    for key, value in score.items():
        if isinstance(value, dict):
            if key in SIGNED and isinstance(value.get("signature"), str):
                yield key, value["signature"]
            yield from _signatures(value)


def render_report(runs: Path, table: str, out: Path | None = None) -> str:
    """Return the page of a table, and write it to `out`. The same runs give the same bytes.

    Raises a UserError for an unknown table, for missing or broken runs, and for a path that cannot be written.
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
