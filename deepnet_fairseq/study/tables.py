"""Render `deepnet report`: recorded runs beside the numbers of a paper's table, as one Markdown page.

The published numbers stand in the files of experiments/. A table names keys of run.json, such as method and
encoder_layers; runs with the same values of these keys share a row, and differ in their seed alone. The other columns
of a table are numbers of score.json, in which a path "sets.test.bleu" stands for score["sets"]["test"]["bleu"]. RUNS is
the folder that holds the folders of all experiments' runs. A miniature is a run of a small model on generated data, to
try an experiment; its numbers mean nothing.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import UserError
from ..files import check_file, whole
from ..text_table import escape, markdown
from . import experiments, paper
from .plots import format_number, magnitude, style_of
from .runs import SCORED, STACKS, UNSCORED, RecordedRun, recorded_below

POINTS = {  # figure of DeepNet -> list of depths (encoder layers, decoder layers), and method -> its BLEU at each
    6: (
        [(layers, layers) for layers in paper.FIGURE6_LAYERS],
        paper.FIGURE6,
    ),
    8: (
        [(total // 2, total // 2) for total in paper.FIGURE8["deepnorm"]],
        {"deepnorm": paper.FIGURE8["deepnorm"].values()},
    ),
}
DASH = "–"  # an empty cell
BANNER = "Miniature on generated data: do not compare its numbers with the paper's."
METRICS = {  # entry of score.json that has a "signature" -> name of the metric in the notes
    "tokenised": "tokenised BLEU",
    "sacrebleu": "sacreBLEU",
    "spbleu": "spBLEU",
    "m2m": "BLEU by M2M-100's protocol",
    "ter": "TER",
}
PACKAGES = {"python": "Python", "torch": "PyTorch", "sacrebleu": "sacreBLEU"}  # package -> its usual name
Published = float | str  # a number or "diverged"


@dataclass(frozen=True)
class Table:
    """Table of a paper, or the numbers of a figure: an entry [[table]] of experiments/NAME.toml.

    name: for `deepnet report --table`. folders: names of the folders below RUNS that hold its runs; script: the command
    that records them, as "scripts/table1_wmt17.sh". title: what is compared. paper: {"citation": authors, year and
    title, "url": address}; place: where in the paper the numbers stand, as "Table 1".

    metric: what the numbers are, as "BLEU, tokenised". columns: head of a column -> path of its number in score.json.
    keys: the keys of run.json whose values tell rows apart. rows: tuple of the values of `keys` -> head of a column ->
    published number; a column is missing if the paper has no number. kind: the kind of the published BLEU, one of
    scoring.scores.KINDS, "" if it differs between columns or they are no BLEU. higher_is_better: as for BLEU; False
    for a perplexity. searched: a further key of run.json over which the paper searched, as "lr"; runs with different
    values of it have rows of their own; "" for none. notes: paragraphs below the table.
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
    """Return the tables in one file of experiments/ by name; content: the keys of the file and their values."""
    papers = paper.PAPERS | content.get("papers", {})
    return {fields["name"]: _table(papers, fields) for fields in content.get("table", ())}


def _table(papers: Mapping[str, Mapping[str, str]], entry: Mapping[str, Any]) -> Table:
    """Make the table of an entry [[table]]: most of its keys are fields of Table, and the rest give its numbers.

    The published numbers are given in one of three ways. "rows" and "head": a list for each row, and the names of its
    entries, which are keys of run.json and heads of columns. "values" and "across": for each method the list of its
    numbers in the last column, and the depths they belong to, pairs (encoder layers, decoder layers). "figure": the
    number of a figure in POINTS, which has such depths and numbers. papers: name -> {"citation": ..., "url": ...}.
    """
    fields = dict(entry)
    columns = list(fields["columns"])
    keys = fields.get("keys", ("method", *STACKS))
    head = fields.pop("head", ())
    rows = fields.pop("rows", ())
    figure = fields.pop("figure", None)
    depths = fields.pop("across", ())
    values = fields.pop("values", {})
    if figure:
        depths, values = POINTS[figure]

    # Each row as a dictionary: key of run.json -> value, and head of a column -> number.
    named_rows = [dict(zip(head, row, strict=True)) for row in rows]
    for method in values:
        for depth, value in zip(depths, values[method], strict=True):
            row = dict(zip(keys, (method, *depth), strict=True))
            row[columns[-1]] = value
            named_rows.append(row)

    published = {}  # Table.rows
    for row in named_rows:
        key = tuple(row[name] for name in keys)
        # "" in the file stands for a number that the paper does not have; a whole column of those is not in `head`
        published[key] = {column: row[column] for column in columns if row.get(column, "") != ""}

    fields["paper"] = papers[fields["paper"]]
    fields["rows"] = published
    fields["keys"] = keys
    error = paper.ERROR.get(figure, "")  # notes give it if the numbers were read off a figure; other tables have none
    fields["notes"] = [note.strip().format(error=error) for note in fields.get("notes", ())]
    return Table(**fields)


def _read_all_tables() -> dict[str, Table]:
    """Return the tables of all experiments, by name."""
    tables: dict[str, Table] = {}
    for name in experiments.names():
        tables |= read_tables(experiments.read_experiment(name).content)
    return dict(sorted(tables.items()))


TABLES = _read_all_tables()


def number_at(score: Mapping, path: str) -> float | None:
    """Return the number score["a"]["b"] for the path "a.b"; None if there is no such entry or it is no number.

    score: the content of score.json.
    """
    value: Any = score
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Cell:
    """One cell: the numbers of the runs of a row, which differ in their seed, beside the published one.

    values: the runs' numbers; others: of each run without a number its state, as "running (update 400)", see
    RecordedRun.state; published: None if the paper has no number.
    """

    values: Sequence[float]
    others: Sequence[str]
    published: Published | None

    @property
    def mean(self) -> float | None:
        """Return the mean of the values; None without values."""
        return statistics.fmean(self.values) if self.values else None

    def __str__(self) -> str:
        """Format as "27.53 ± 0.12, n=3, diverged at update 400 (27.8)".

        These are the mean and the sample standard deviation of n runs, the states of the others, and in parentheses
        the published number. Without runs it begins with "not run".
        """
        parts = []
        if len(self.values) > 1:
            parts.append(f"{self.mean:.2f} ± {statistics.stdev(self.values):.2f}, n={len(self.values)}")
        elif self.values:
            parts.append(f"{self.mean:.2f}")
        for state, count in Counter(self.others).items():
            parts.append(state if count == 1 else f"{state}, n={count}")

        measured = ", ".join(parts) or "not run"
        if self.published is None:
            return measured
        return f"{measured} ({self.published})"


@dataclass(frozen=True, eq=False)
class Result:
    """Row of a table: its runs, which differ in their seed, beside the paper's numbers; either may be missing.

    key: the row's values of table.keys, by which table.rows has the paper's numbers; setting: the runs' value of
    table.searched, as the learning rate "1e-3"; "" if the table has no such key, or there are no runs.
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
        """Return the name of the method, or of a system that was trained elsewhere, as M2M-100."""
        return self.facts["method"]

    @property
    def layers(self) -> int:
        """Return the layers of encoder and decoder together; 0 in a table whose rows do not differ in them."""
        return sum(self.facts.get(key, 0) for key in STACKS)

    @property
    def labels(self) -> list[str]:
        """Return the row's first cells, for the heads of _label_heads.

        The cells are the method's title, the values of the table's other keys, the setting, and the depth as "18L-18L".
        """
        facts = self.facts
        cells = [style_of(self.method).label]
        cells += [str(facts[key]) or DASH for key in _other_keys(self.table)]
        if self.table.searched:
            cells.append(self.setting or DASH)

        depth = "-".join(f"{facts[key]}L" for key in STACKS if key in facts)
        if depth:
            cells.append(depth)
        return cells

    def cell(self, column: str) -> Cell:
        """Return the row's cell in a column; column: its head, a key of table.columns."""
        values = []
        others = []
        for run in self.runs:
            value = number_at(score_of(self.table, run), self.table.columns[column])
            if value is not None:
                values.append(value)
            elif run.state == SCORED:  # its score has other numbers, and not this one
                others.append(UNSCORED)
            else:
                others.append(run.state)

        published = self.table.rows.get(self.key, {}).get(column)
        return Cell(values, others, published)


def _other_keys(table: Table) -> list[str]:
    """Return the table's keys without method and depth."""
    return [key for key in table.keys if key not in ("method", *STACKS)]


def _label_heads(table: Table) -> list[str]:
    """Return the heads of the first columns, which Result.labels fills: model, other keys, setting, layers."""
    heads = ["model", *_other_keys(table)]
    if table.searched:
        heads.append(table.searched)
    if STACKS[0] in table.keys:
        heads.append("layers")
    return heads


def _row_of(table: Table, run: RecordedRun) -> tuple[tuple, str]:
    """Return (Result.key, Result.setting) of the row that a run belongs to; UserError for a key that run.json lacks."""
    facts = run.facts
    if "system" in facts:  # trained elsewhere: the system's name takes the place of the method
        facts = facts | {"method": facts["system"]}

    needed = [*table.keys]
    if table.searched:
        needed.append(table.searched)
    for key in needed:
        if not isinstance(facts.get(key), (str, int)):
            raise UserError(run.where(), f"{key} is missing; table {table.name} tells its rows apart by it")

    key = tuple(facts[key] for key in table.keys)
    setting = str(facts.get(table.searched, ""))  # run.json has no key "", which stands for no searched key
    return key, setting


def score_of(table: Table, run: RecordedRun) -> dict:
    """Return the content of score.json if the run's state is SCORED, else {}.

    Raises a UserError if that score.json has no number for any column of the table.
    """
    score = (run.score or {}) if run.state == SCORED else {}
    if score and all(number_at(score, path) is None for path in table.columns.values()):
        asked = " or ".join(f'"{path}"' for path in table.columns.values())
        raise UserError(run.where("score"), f"holds no number {asked}; score the run again")
    return score


def _run_name(table: Table, run: RecordedRun) -> str:
    """Return the name of a run's folder, or EXPERIMENT/NAME if the table's runs are of several experiments."""
    return run.name if len(table.folders) == 1 else run.address


@dataclass(frozen=True)
class TableReport:
    """A table with its runs, all that its page shows.

    folder: RUNS; results: the rows, in order; warnings: reasons to read the numbers with care, a line each; miniature:
    whether some run is a miniature. environments: what the runs were trained with, as environment_line describes it,
    each once; the page numbers them from 1.
    """

    table: Table
    folder: Path
    results: list[Result]
    warnings: list[str]
    miniature: bool
    environments: list[str]

    @property
    def runs(self) -> list[RecordedRun]:
        """Return all runs, those of one row together."""
        runs = []
        for result in self.results:
            runs += result.runs
        return runs


def collect(folder: Path, table: Table) -> TableReport:
    """Read the runs of a table and put them into rows; UserError if there is no run, or one is broken.

    folder: RUNS. If some run is a miniature, rows without runs are left out, since it is not compared with the paper.
    """
    runs = []
    for name in table.folders:
        runs += recorded_below(folder / name)
    if not runs:
        raise UserError(folder / table.folders[0], f"holds no runs; record some with {table.script} (OUT={folder})")

    miniature = any(run.miniature for run in runs)
    results = [result for result in _results(table, runs) if result.runs or not miniature]

    environments = []
    for result in results:
        environments += [environment_line(run.environment) for run in result.runs]
    return TableReport(
        table=table,
        folder=folder,
        results=results,
        warnings=_warnings(table, runs),
        miniature=miniature,
        environments=list(dict.fromkeys(environments)),
    )


def _results(table: Table, runs: Sequence[RecordedRun]) -> list[Result]:
    """Return the rows of the paper and those of the runs, ordered by system, then by depth, then by setting.

    A system is what a row's key says but for the depth: its method, for instance. The systems of the paper's table go
    first, in its order.
    """

    def by_seed(run: RecordedRun) -> tuple[int, str]:
        return run.seed or 0, _run_name(table, run)

    groups: dict[tuple[tuple, str], list[RecordedRun]] = {}  # (Result.key, Result.setting) -> the runs of this row
    for run in sorted(runs, key=by_seed):
        groups.setdefault(_row_of(table, run), []).append(run)

    def numbers_before_texts(key: tuple) -> list[tuple]:
        """Return what sorts a row: at one place a row may have a number or a text, and Python compares no such two."""
        return [(isinstance(value, str), value) for value in key]

    recorded_keys = sorted({key for key, _ in groups}, key=numbers_before_texts)  # of rows that have runs

    results = [Result(table, key, setting="", runs=[]) for key in table.rows if key not in recorded_keys]
    for (key, setting), group in groups.items():
        results.append(Result(table, key, setting=setting, runs=group))

    def system(key: tuple) -> tuple:
        """Return the values of a row's key without its numbers of layers."""
        return tuple(value for name, value in zip(table.keys, key, strict=True) if name not in STACKS)

    systems = list(dict.fromkeys(map(system, [*table.rows, *recorded_keys])))  # in the order of the page, each once

    def by_system_depth_and_setting(result: Result) -> tuple:
        return systems.index(system(result.key)), result.layers, magnitude(result.setting)

    return sorted(results, key=by_system_depth_and_setting)


def _warnings(table: Table, runs: Sequence[RecordedRun]) -> list[str]:
    """Return a line for each reason to read the numbers with care, with the names of the runs that it applies to.

    A further line, without names, says so if miniatures and other runs are in one table.
    """
    by_reason: dict[str, list[str]] = {}  # reason -> names of runs
    for run in runs:
        for reason in _reasons(table, run):
            by_reason.setdefault(reason, []).append(_run_name(table, run))

    warnings = [f"{reason}: {', '.join(names)}" for reason, names in by_reason.items()]
    if len({run.miniature for run in runs}) > 1:
        warnings.append("miniatures and runs in full stand in one table")
    return warnings


def _reasons(table: Table, run: RecordedRun) -> list[str]:
    """Return the reasons to read a run's numbers with care.

    The reasons are uncommitted changes to the code, and what differs from the paper: kind of BLEU, corpus, batch.
    """
    reasons = []
    if run.environment.get("modified"):
        reasons.append("trained from a modified working tree, so the commit does not tell all")

    kind = score_of(table, run).get("kind", table.kind)  # a run that is not scored has no other kind than the paper
    if table.kind and kind != table.kind:
        reasons.append(f"the published numbers are {table.kind} BLEU, these are {kind}")

    texts = {  # key of run.json, which has the paper's value under paper_KEY -> text for both values
        "corpus": "trained and tested on the corpus {}, the paper's is {}",
        "batch_tokens": "an update has {} tokens, the paper's {}",
    }
    for key, text in texts.items():
        own = run.facts.get(key)
        published = run.facts.get(f"paper_{key}")
        if own and published and own != published and not run.miniature:
            reasons.append(text.format(own, published))
    return reasons


def environment_line(environment: Mapping) -> str:
    """Describe in one line what a run was trained with: commit, versions and hardware.

    environment: the content of environment.json, {} if it was not recorded.
    """
    commit = environment.get("commit") or "not recorded"
    modified = " (modified)" if environment.get("modified") else ""
    parts = [f"commit {commit}{modified}"]

    versions = environment.get("versions")
    if isinstance(versions, dict):
        parts += [f"{PACKAGES.get(name, name)} {version}" for name, version in versions.items()]

    hardware = environment.get("hardware") or "hardware not recorded"
    return f"{', '.join(parts)}; {hardware}"


def markdown_page(report: TableReport, out: Path | None = None) -> str:
    """Return the Markdown page of a table.

    out: the file that the page is for; links to logs are relative to its folder. If it is None, they are relative to
    RUNS.
    """
    table = report.table
    start_of_links = out.resolve().parent if out else report.folder.resolve()

    overview = [[*_label_heads(table), *table.columns]]
    for result in report.results:
        cells = [str(result.cell(column)) for column in table.columns]
        overview.append([*result.labels, *cells])

    parts = [
        f"# {escape(table.place)}: {escape(table.title)}",
        f"Compared with {escape(table.place)} of {escape(table.paper['citation'])}: <{table.paper['url']}>",
    ]
    if report.miniature:
        parts.append(f"> **{escape(BANNER)}**")
    parts += [f"> **Warning:** {escape(warning)}" for warning in report.warnings]
    parts += [
        "## Overview",
        escape(f"{table.metric}. Each cell is measured (published). Several seeds give mean ± standard deviation."),
        markdown([list(map(escape, row)) for row in overview]),
        "## Runs",
        "Each training has a row.",
        markdown(_rows_of_runs(report, start_of_links)),
        "## Notes",
        "\n".join(f"- {escape(note)}" for note in _notes(report)),
        "Trained with:",
        "\n".join(f"{n}. {escape(environment)}" for n, environment in enumerate(report.environments, 1)),
    ]
    return "\n\n".join(parts) + "\n"


def _rows_of_runs(report: TableReport, start_of_links: Path) -> list[list[str]]:
    """Return the heads of the table of runs, and a row of cells for each run, all as Markdown.

    "trained with" is the number of the run's line in report.environments, from 1. start_of_links: the folder to which
    links to logs are relative.
    """
    table = report.table
    heads = ["run", *_label_heads(table), "seed", "state", *table.columns]
    if _tokenised(table):
        heads.append("sacreBLEU [95%]")
    heads += ["updates", "cost", "trained with", "log"]

    rows = [list(map(escape, heads))]
    for result in report.results:
        for run in result.runs:
            score = score_of(table, run)
            seed = DASH if run.seed is None else str(run.seed)
            cells = [_run_name(table, run), *result.labels, seed, run.state]
            cells += [_two_decimals(number_at(score, path)) for path in table.columns.values()]
            if _tokenised(table):
                cells.append(_sacrebleu_with_interval(score))
            cells.append(DASH if run.updates is None else str(run.updates))
            cells.append(_cost(run))
            index_of_environment = report.environments.index(environment_line(run.environment))
            cells.append(str(index_of_environment + 1))

            path = Path(os.path.relpath(run.log_file.resolve(), start_of_links)).as_posix()
            link = f"[log]({quote(path)})" if run.log_file.exists() else DASH
            rows.append([*map(escape, cells), link])
    return rows


def _tokenised(table: Table) -> bool:
    """Tell whether the published BLEU is tokenised; the page then shows sacreBLEU too.

    Tokenised BLEU depends on the tokenisation of the corpus, sacreBLEU does not.
    """
    return table.kind == "tokenised"


def _two_decimals(value: float | None) -> str:
    """Format with two decimals; a dash for None."""
    return DASH if value is None else f"{value:.2f}"


def _sacrebleu_with_interval(score: dict) -> str:
    """Return sacreBLEU's score with its 95% bootstrap interval, as "27.53 [26.90, 28.14]".

    score: the content of score.json. Without an interval the score stands alone; without a score a dash.
    """
    value = number_at(score, "sacrebleu.score")
    mean = number_at(score, "sacrebleu.mean")  # of the bootstrap samples
    half_width = number_at(score, "sacrebleu.ci")  # of the interval
    if value is None or mean is None or half_width is None:
        return _two_decimals(value)
    return f"{value:.2f} [{mean - half_width:.2f}, {mean + half_width:.2f}]"


def _cost(run: RecordedRun) -> str:
    """Return the hours of training times the GPUs, as "0.042 GPU-hours"; for a training on a CPU its CPU-hours.

    If the hours or the number of GPUs are not recorded, it is a dash.
    """
    gpus = run.environment.get("gpus")
    hours = run.hours
    if hours is None or not isinstance(gpus, int):
        return DASH
    if gpus == 0:
        return f"{format_number(hours, digits=2)} CPU-hours"
    return f"{format_number(hours * gpus, digits=2)} GPU-hours"


def _notes(report: TableReport) -> list[str]:
    """Return notes on how to read the page's tables, and how their numbers were computed, a paragraph each."""
    better = "Higher" if report.table.higher_is_better else "Lower"
    notes = [
        f"Parentheses hold the published number ({report.table.place}); where there are none, the paper has no number. "
        f'"not run" means that no run was recorded. {better} is better.',
        *report.table.notes,
    ]
    if _tokenised(report.table):
        notes.append("Brackets hold the 95% interval from 1,000 bootstrap samples of the test set.")
    notes.append(
        "Cost is the wall time of all attempts of a training, times its number of GPUs if it ran on GPUs. "
        "It does not include translation and scoring."
    )

    signatures: set[tuple[str, str]] = set()  # (key of METRICS, sacreBLEU's signature)
    for run in report.runs:
        signatures.update(_signatures(score_of(report.table, run)))
    notes += [f"Signature of {METRICS[name]}: {text}" for name, text in sorted(signatures)]
    return notes


def _signatures(score: dict) -> Iterator[tuple[str, str]]:
    """Yield (key of METRICS, sacreBLEU's signature) for each metric in the content of score.json, however nested."""
    for key, value in score.items():
        if isinstance(value, dict):
            if key in METRICS and isinstance(value.get("signature"), str):
                yield key, value["signature"]
            yield from _signatures(value)


def render_report(runs: Path, table: str, out: Path | None = None) -> str:
    """Return the page of a table, and write it to the file `out` if there is one.

    The page's links are relative to the folder of `out`, or to RUNS without one; the same runs and the same `out` give
    the same bytes. runs: RUNS; table: the name of one of TABLES. Raises a UserError for an unknown table, for missing
    or broken runs, and for a path that cannot be written.
    """
    if table not in TABLES:
        raise UserError(f"--table {table}", f"no such table; choose one of {', '.join(TABLES)}")
    if out:
        check_file("--out", out)
    text = markdown_page(collect(runs, TABLES[table]), out)
    if out:
        with whole(out) as part:
            part.write_text(text, encoding="utf-8")
    return text
