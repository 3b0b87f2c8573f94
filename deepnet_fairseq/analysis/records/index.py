"""One row for each table and figure of the papers: what was run, our number beside the paper's, where it lies."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ..recorded_run import name_of
from ..report.collect import Report
from ..report.document import Grid, Text
from ..report.markdown import grid_text
from ..report.numbers import published
from ..report.result import Result
from ..report.table import Table

NOT_RUN = "not run"
OWN = ("deepnorm", "normformer", "admin")  # the method that a table's paper is about
FIGURES = {  # those that are not Figure N of DeepNet, by scripts/figureN.sh
    "depth": ("DeepNorm and Post-LN at several depths", "scripts/quickstart.sh"),
    "normformer3": ("Shleifer et al. 2021, Figure 3", "scripts/normformer_lm.sh"),
    "normformer4": ("Shleifer et al. 2021, Figure 4", "scripts/normformer_lm.sh"),
}


@dataclass(frozen=True)
class Row:
    """state: what was run here; number: the headline; place: of the record, None where there is none."""

    what: str
    script: str
    state: str = NOT_RUN
    number: str = ""
    place: Path | None = None


def table_row(report: Report, place: Path) -> Row:
    """place: of the table's page."""
    kind = "miniature" if report.miniature else "as in the paper, but for its warnings"
    over = [entry for entry in report.entries if entry.run.finished]
    state = f"{kind}, {len(over)} run{'s' * (len(over) != 1)}"
    return Row(title_of(report.table), report.table.script, state, _headline(report), place)


def title_of(table: Table) -> str:
    """With whose table it is."""
    return f"{table.paper.citation.split(',')[0]}, {table.place}: {table.title}"


def _headline(report: Report) -> str:
    """The deepest model of the paper's own method that has a number, first among those that the paper has one of."""
    column = report.table.columns[0]

    def rank(result: Result) -> tuple:
        return (result.method in OWN, result.cells[column.key].published is not None, result.layers or 0)

    measured = [r for r in report.results if r.method and r.cells[column.key].mean is not None]
    if not measured:
        return ""
    result = max(measured, key=rank)
    cell = result.cells[column.key]
    theirs = published(cell, missing="no number")
    return f"{result.label} {result.depth}, {column.name}: {cell.text(report.table.metric.digits)} ({theirs})"


def figure_row(figure: int | str, picture: Path | None) -> Row:
    """picture: None if it was not drawn."""
    what, script = FIGURES.get(figure, (f"Wang et al. 2022, Figure {figure}", f"scripts/{name_of(figure)}.sh"))
    if picture is None:
        return Row(what, script)
    return Row(what, script, "miniature" if picture.parent.name == "miniature" else "in full", "picture", picture)


def index(rows: list[Row], results: Path) -> str:
    """Markdown of all rows, on a page in `results`."""
    header = ["what", "script", "run here", "measured (published)", "record"]
    return grid_text(Grid("index", "", "", header, [_cells(row, results) for row in rows])) + "\n"


def _cells(row: Row, results: Path) -> list[Text]:
    link = Text("–")
    if row.place:
        place = Path(os.path.relpath(row.place.resolve(), results.resolve())).as_posix()
        link = Text(row.place.name, link=quote(place))
    return [Text(row.what), Text(row.script), Text(row.state), Text(row.number or "–"), link]
