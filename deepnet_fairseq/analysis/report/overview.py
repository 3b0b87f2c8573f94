"""Results beside the paper: in brief, and one row each."""

from __future__ import annotations

from .cell import Cell
from .collect import Report
from .document import Grid, Text
from .entry import beside
from .numbers import DASH, MISSING, change, published, size, whole_number
from .result import Result, shallow_first
from .table import DEPTH, Table


def overview(report: Report) -> Grid:
    """Methods by depths where the table is a grid, else rows by columns. A cell: "measured (published)"."""
    header, rows = _by_depth(report) if report.table.grid else _by_column(report)
    return Grid("overview", "Overview", f"{report.table.metric.name}: measured (published)", header, rows)


def _by_depth(report: Report) -> tuple[list[str], list[list[Text]]]:
    (column,) = report.table.columns
    found = {(result.label, result.depth): result for result in report.results}
    labels = list(dict.fromkeys(result.label for result in report.results))
    depths = list(
        dict.fromkeys(result.depth for result in shallow_first(report.results, lambda result: tuple(result.others)))
    )
    rows = [
        [Text(label), *(_cell(report, found.get((label, depth)), column.key) for depth in depths)] for label in labels
    ]
    return ["method", *depths], rows


def _by_column(report: Report) -> tuple[list[str], list[list[Text]]]:
    header = [*name_header(report.table), "parameters", *(column.name for column in report.table.columns)]
    return header, [
        [*names(result), parameters(result), *(_cell(report, result, key) for key in result.cells)]
        for result in report.results
    ]


def _cell(report: Report, result: Result | None, key: str) -> Text:
    """With the letters of its environments where the table has several."""
    if result is None:
        return Text("not run", "not run")
    if not result.method:
        return Text(DASH, "absent", published(result.cells[key]))
    marks = tuple(result.letters) if len(report.environments) > 1 else ()
    cell = result.cells[key]
    return Text(cell.text(report.table.metric.digits), cell.state.value, published(cell, missing=""), marks)


def beside_paper(report: Report) -> Grid:
    """One row a result, the paper's number and the difference in columns of their own.

    Rows without runs are left to the overview where that is a grid.
    """
    chosen = [result for result in report.results if result.entries or not report.table.grid]
    metrics = further_metrics(report)
    header = [*name_header(report.table), "parameters", "runs"]
    for column in report.table.columns:
        several = len(report.table.columns) > 1
        header += [column.name, *([f"{column.name}, paper"] if several else ["paper"])]
        header += [] if report.miniature else ["difference"]
    rows = []
    for result in chosen:
        row = [*names(result), parameters(result), Text(whole_number(len(result.best)), "number")]
        for cell in result.cells.values():
            row += _measured_published_difference(report, result, cell)
        rows.append(row + [_further(report, result.beside(key)) for key in metrics.values()])
    caption = f"{report.table.metric.name}; over several seeds mean ± standard deviation of the sample"
    return Grid("results", "Beside the paper", caption, header + list(metrics), rows)


def _measured_published_difference(report: Report, result: Result, cell: Cell) -> list[Text]:
    digits = report.table.metric.digits
    mine = Text(cell.text(digits), cell.state.value) if result.method else MISSING
    difference = [] if report.miniature else [Text(change(cell.difference, digits), "number")]
    return [mine, Text(published(cell), "number"), *difference]


def _further(report: Report, cell: Cell) -> Text:
    return MISSING if cell.mean is None else Text(cell.text(report.table.metric.digits), "number")


def further_metrics(report: Report) -> dict[str, str]:
    """Name -> key in score.json: those that some run has."""
    known = {"sacreBLEU": "sacrebleu", "chrF": "chrf", "spBLEU": "spbleu"}
    scores = [entry.score for entry in report.entries]
    return {name: key for name, key in known.items() if any(beside(score, key) is not None for score in scores)}


def name_header(table: Table) -> list[str]:
    """Heads of the columns that say what a row is."""
    return ["model", *table.others, *["layers"] * (DEPTH[1] in table.keys), *[table.tuned] * bool(table.tuned)]


def names(result: Result) -> list[Text]:
    """Under name_header: the model, what else tells rows apart, and the depth, in a grid as 18L-18L, else in all."""
    table, facts = result.table, result.row.facts
    depth = f"{facts[DEPTH[1]]}L-{facts[DEPTH[2]]}L" if table.grid else whole_number(result.layers)
    layers = [Text(depth, "number")] * (DEPTH[1] in table.keys)
    tuned = [Text(result.tuned or DASH, "number")] * bool(result.table.tuned)
    return [Text(result.label), *(Text(value or DASH) for value in result.others), *layers, *tuned]


def parameters(result: Result) -> Text:
    """Measured, as papers give it, with the published number."""
    return Text(size(result.parameters), "number", result.row.parameters)
