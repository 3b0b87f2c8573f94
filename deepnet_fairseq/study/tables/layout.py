"""A report laid out as a document of plain text, each format's own to escape: overview, tables of runs, notes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

from ...core.methods import METHODS
from .collect import TableReport
from .definitions import DEPTH, LINKS, Table, number_at
from .result import Cell, Entry, Result, described, shallow_first

DASH, MINUS = "–", "−"
BANNER = "Miniature on generated data: numbers say nothing about the paper's."
FURTHER = {"sacreBLEU": "sacrebleu", "chrF": "chrf", "spBLEU": "spbleu", "TER": "ter"}  # by their keys in score.json
SIGNED = {"tokenised": "tokenised BLEU", "m2m": "BLEU by M2M-100's protocol"} | {
    key: name for name, key in FURTHER.items()
}


@dataclass(frozen=True)
class Text:
    """A cell. kind: the state of its run, "number", "absent", "environment" or "". paper: the published value in it.

    marks: letters of footnotes; link: where the text leads, a relative path or an address.
    """

    text: str
    kind: str = ""
    paper: str = ""
    marks: tuple[str, ...] = ()
    link: str = ""


MISSING = Text(DASH, "absent")


@dataclass(frozen=True)
class Grid:
    """A table of cells. name: short, for addresses within a page. The first column says what a row is."""

    name: str
    title: str
    caption: str
    header: list[str]
    rows: list[list[Text]]

    @property
    def of_words(self) -> list[bool]:
        """Of each column: does it hold words, to be aligned left?"""
        words = {"", "absent", "environment"}
        return [all(row[place].kind in words for row in self.rows) for place in range(len(self.header))]


@dataclass(frozen=True)
class Document:
    """overview: the table in brief; grids: further ones. footnotes: letter -> what runs were trained with.

    logs: name of a run -> where its log lies.
    """

    overview: Grid
    grids: list[Grid]
    footnotes: dict[str, str]
    notes: list[str]
    logs: dict[str, str]


def numeral(value: object | None) -> Text:
    """A number as it is, or a text of one; a dash for None."""
    return Text(DASH if value is None else str(value), "number")


def number(value: float | None, sign: str = "") -> Text:
    """With two decimals; sign: "+" for a difference, its minus as typographers have it."""
    return numeral(None if value is None else f"{value:{sign}.2f}".replace("-", MINUS))


def size(parameters: int | None) -> str:
    """As papers give it: 61M, 3.8B."""
    if parameters is None:
        return DASH
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.{0 if parameters >= 10 * unit else 1}f}{name}"
    return str(parameters)


def hours(cost: tuple[float, str] | None) -> Text:
    """With at most three decimals: 0.042 GPU-hours, 1250 GPU-hours."""
    if cost is None:
        return numeral(None)
    value, unit = cost
    return numeral(f"{value:.{3 if value < 0.1 else 2 if value < 10 else 0}f} {unit}-hours")


def published(cell: Cell, missing: str = DASH) -> str:
    """With the digits the paper gives."""
    return missing if cell.published is None else str(cell.published)


def interval(score: dict, metric: str) -> Text:
    """A score with its 95% bootstrap interval, as "27.53 [26.90, 28.14]"."""
    value, mean, half = (number_at(score, f"{metric}.{key}") for key in ("score", "mean", "ci"))
    if value is None or half is None:
        return number(value)
    middle = value if mean is None else mean
    return numeral(f"{value:.2f} [{middle - half:.2f}, {middle + half:.2f}]")


def lay_out(report: TableReport, out: Path | None) -> Document:
    """out: the file it is written to; links to logs are relative to its folder, without one to RUNS."""
    start = out.resolve().parent if out else report.runs.resolve()
    logs = {entry.name: entry.run.log_file for entry in report.entries}
    links = {name: relative_link(path, start) for name, path in logs.items() if path.exists()}
    return Document(
        overview=_overview(report),
        grids=[_beside_paper(report), _run_list(report, links), *_by_language(report), _method_list(report)],
        footnotes={letter: described(environment) for letter, environment in report.environments.items()},
        notes=_notes(report),
        logs=links,
    )


def relative_link(path: Path, start: Path) -> str:
    """An address that leads to `path` from a page in the folder `start`."""
    return quote(Path(os.path.relpath(path.resolve(), start.resolve())).as_posix())


def _overview(report: TableReport) -> Grid:
    """Methods by depths where the table is a grid, else rows by columns. A cell: "measured (published)"."""
    header, rows = _by_depth(report) if report.table.grid else _by_column(report)
    return Grid("overview", "Overview", f"{report.table.metric.name}: measured (published)", header, rows)


def _by_depth(report: TableReport) -> tuple[list[str], list[list[Text]]]:
    column = report.table.columns[0]
    found = {(result.label, result.depth): result for result in report.results}
    labels = list(dict.fromkeys(result.label for result in report.results))
    deeper = shallow_first(report.results, lambda result: tuple(result.others))
    depths = list(dict.fromkeys(result.depth for result in deeper))
    return ["method", *depths], [
        [Text(label), *(_cell(report, found.get((label, depth)), column.key) for depth in depths)] for label in labels
    ]


def _by_column(report: TableReport) -> tuple[list[str], list[list[Text]]]:
    header = [*_name_header(report.table), "parameters", *(column.name for column in report.table.columns)]
    return header, [
        [*_names(result), _parameters(result), *(_cell(report, result, key) for key in result.cells)]
        for result in report.results
    ]


def _cell(report: TableReport, result: Result | None, key: str) -> Text:
    """With the letters of its environments where the table has several."""
    if result is None:
        return Text("not run", "not run")
    if not result.method:
        return Text(DASH, "absent", published(result.cells[key]))
    marks = tuple(result.letters) if len(report.environments) > 1 else ()
    cell = result.cells[key]
    return Text(str(cell), cell.state.value, published(cell, missing=""), marks)


def _beside_paper(report: TableReport) -> Grid:
    """One row a result, the paper's number and the difference in columns of their own.

    Rows without runs are left to the overview where that is a grid.
    """
    columns, metrics = report.table.columns, _further_metrics(report)
    header = [*_name_header(report.table), "parameters", "runs"]
    for column in columns:
        header += [column.name, f"{column.name}, paper" if len(columns) > 1 else "paper"]
        header += [] if report.miniature else ["difference"]
    rows = []
    for result in report.results:
        if not result.entries and report.table.grid:
            continue
        row = [*_names(result), _parameters(result), numeral(len(result.best))]
        for cell in result.cells.values():
            row += [Text(str(cell), cell.state.value) if result.method else MISSING, numeral(published(cell))]
            row += [] if report.miniature else [number(cell.difference, "+")]
        further = (result.beside(key) for key in metrics.values())
        rows.append(row + [MISSING if cell.mean is None else numeral(cell) for cell in further])
    caption = f"{report.table.metric.name}; over several seeds mean ± standard deviation of the sample"
    return Grid("results", "Beside the paper", caption, header + list(metrics), rows)


def _further_metrics(report: TableReport) -> dict[str, str]:
    """Of FURTHER those that some run has and no column of the table is of."""
    read = {
        name: [number_at(entry.score, f"{key}.score") for entry in report.entries]
        for name, key in FURTHER.items()
        if all(column.path != f"{key}.score" for column in report.table.columns)
    }
    return {name: FURTHER[name] for name, scores in read.items() if any(score is not None for score in scores)}


def _name_header(table: Table) -> list[str]:
    """Heads of the columns that say what a row is."""
    return ["model", *table.others, *["layers"] * (DEPTH[1] in table.keys), *filter(None, [table.tuned])]


def _names(result: Result) -> list[Text]:
    """Under _name_header: the model, what else tells rows apart, and the depth, in a grid as 18L-18L, else in all."""
    table, facts = result.table, result.row.facts
    found = [Text(result.label), *(Text(value or DASH) for value in result.others)]
    if DEPTH[1] in table.keys:
        found.append(numeral(f"{facts[DEPTH[1]]}L-{facts[DEPTH[2]]}L" if table.grid else result.layers))
    return [*found, numeral(result.tuned or None)] if table.tuned else found


def _parameters(result: Result) -> Text:
    """Measured, as papers give it, with the published number."""
    return Text(size(result.parameters), "number", result.row.parameters)


def _run_list(report: TableReport, logs: dict[str, str]) -> Grid:
    """Every run: how it stands, its scores, what it took, with what it was trained. logs: run -> address."""
    metrics = _further_metrics(report)
    tested = any(entry.p is not None for entry in report.entries)
    header = ["run", "method", "layers" if DEPTH[1] in report.table.keys else "row"]
    header += [*filter(None, [report.table.tuned]), "seed", "state", *(column.name for column in report.table.columns)]
    header += [f"{name} [95%]" for name in metrics] + [f"p against {report.baseline}"] * tested
    header += ["updates", "cost", "trained with", "log"]
    rows = []
    for result in report.results:
        for entry in result.entries:
            rows.append([
                Text(entry.name), Text(result.label), numeral(result.depth),
                *(numeral(entry.run.facts.get(key)) for key in filter(None, [report.table.tuned])),
                numeral(entry.run.seed), Text(str(entry.status), entry.status.state.value),
                *(number(column.read(entry.score)) for column in report.table.columns),
                *(interval(entry.score, key) for key in metrics.values()),
                *[numeral(_p(entry, report.baseline))] * tested,
                numeral(entry.updates), hours(entry.cost), Text(entry.environment, "environment"),
                Text("log", link=logs[entry.name]) if entry.name in logs else MISSING,
            ])  # fmt: skip
    return Grid("runs", "Runs", "one row a training", header, rows)


def _p(entry: Entry, baseline: str) -> str | None:
    if entry.run.method == baseline:
        return "baseline"
    if entry.p is None:
        return None
    return "<0.001" if entry.p < 0.001 else f"{entry.p:.3f}"


def _by_language(report: TableReport) -> list[Grid]:
    """BLEU into each language, a column a run of many directions; no grid without one.

    Languages do not share their words: where the model does not write the one it is asked for, BLEU is about 0.
    """
    columns = {entry.name: found for entry in report.entries if (found := _into(entry.score))}
    if not columns:
        return []
    rows = [
        [Text(language), *(number(found.get(language)) for found in columns.values())]
        for language in sorted(set().union(*columns.values()))
    ]
    caption = "mean BLEU of the directions into it, of all test sets; about 0 where the model writes another language"
    return [Grid("languages", "Into each language", caption, ["language", *columns], rows)]


def _into(score: dict) -> dict[str, float]:
    """Target language -> mean BLEU of its directions."""
    found: dict[str, list[float]] = {}
    for scores in score.get("sets", {}).values():
        for direction, values in scores.get("directions", {}).items():
            found.setdefault(direction.split("-")[1], []).append(values["bleu"])
    return {language: fmean(values) for language, values in found.items()}


def _method_list(report: TableReport) -> Grid:
    """Where each method puts LayerNorm, what a residual branch computes, and its paper."""
    rows = []
    for name, label in {result.method: result.label for result in report.results}.items():
        if method := METHODS.get(name or ""):
            words = map(Text, (label, name, method.norm, method.equation))
            rows.append([*words, Text(method.paper, link=LINKS.get(name, ""))])
    header = ["method", "--method", "LayerNorm", "a residual branch computes", "paper"]
    return Grid("methods", "Methods", "where LayerNorm stands, and the paper", header, rows)


def _notes(report: TableReport) -> list[str]:
    """How to read the tables, and how their numbers were computed: paragraphs in the order of importance."""
    better = "Higher" if report.table.metric.higher_is_better else "Lower"
    found = [
        f"In parentheses the published number, of {report.table.place}; no parentheses where the paper gives none. "
        f'"not run": no run was recorded. {better} is better.',
        *report.table.notes,
    ]
    if _further_metrics(report):
        found.append("In brackets the 95% interval of 1,000 bootstrap samples of the test set.")
    if any(entry.p is not None for entry in report.entries):
        found.append(f"p: paired test of sacreBLEU, same sentences, against {report.baseline}'s run at the same depth.")
    if any(entry.cost for entry in report.entries):
        found.append(
            "Cost: wall time of the training, all its attempts, times its GPUs; on a CPU wall time alone. "
            "Translating and scoring are not in it."
        )
    signatures = {pair for entry in report.entries for pair in _signatures(entry.score) if pair[0] in SIGNED}
    return found + [f"Signature of {SIGNED[name]}: {text}" for name, text in sorted(signatures)]


def _signatures(score: dict) -> Iterator[tuple[str, str]]:
    """Metric and signature, at any depth of a score."""
    for key, value in score.items():
        if isinstance(value, dict):
            if value.get("signature") and isinstance(value["signature"], str):
                yield key, value["signature"]
            yield from _signatures(value)
