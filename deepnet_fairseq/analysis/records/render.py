"""From records to what readers see: the tables' pages, small pictures, an index, and short forms within other pages."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ...atomic_output import check_file, whole
from ...errors import UserError
from ..recorded_run import folder_of, name_of, runs_of
from ..redrawing import EVERY, Figure, redraw
from ..report.brief import has_block, put_into
from ..report.collect import collect
from ..report.table import Table
from ..report.tables import TABLES
from ..report.write import reports
from .index import Row, figure_row, index, table_row, title_of
from .miniatures import Drawn, miniatures
from .quickstart import NAME as QUICKSTART
from .quickstart import quickstart

NOT_RECORDED = "Not run here yet.\n"
COLOURS = 64  # of a picture: lines and letters on white


def render(results: Path, page: Path) -> Iterator[str]:
    """Renders what `results`/runs records; yields a line on each thing done. The same records give the same bytes.

    Written are `results`/tables, /figures and /miniatures.md, and the blocks (see brief.find_block) that `page` and
    `results`/README.md and /quickstart.md have a place for: a table's name, "quickstart" and "index". A figure whose
    runs lack something is left out, and its line says so. UserError if nothing is recorded, or a record is broken.
    """
    runs = results / "runs"
    if not runs.is_dir():
        raise UserError(f"{runs}: no such folder; record runs there with `deepnet record`")
    check_file("--page", page)
    rows = []
    for table in TABLES.values():
        if _is_there(runs, table):
            rows.append(table_row(collect(runs, table), _page(results, table)))
            yield _render_table(results, table, page)
        else:
            rows.append(Row(title_of(table), table.script))
            if has_block(page, table.name):
                put_into(page, table.name, NOT_RECORDED)
    yield from _render_figures(results, rows)
    pages = (page, results / "README.md", results / "quickstart.md")
    blocks = {"index": index(rows, results)}
    if (runs / QUICKSTART).is_dir():
        blocks[QUICKSTART] = quickstart(runs_of(runs, "depth"))
    for name, text in blocks.items():
        for place in filter(lambda place: has_block(place, name), pages):
            put_into(place, name, text)
            yield f"put {name} into {place}"


def _is_there(runs: Path, table: Table) -> bool:
    return any(next((runs / folder).glob("*/run.json"), None) for folder in table.folders)


def _page(results: Path, table: Table) -> Path:
    return results / "tables" / f"{table.folders[0]}.md"


def _render_table(results: Path, table: Table, page: Path) -> str:
    out = _page(results, table)
    out.parent.mkdir(exist_ok=True)
    reports(results / "runs", table.name, {"md": out}, into=page if has_block(page, table.name) else None)
    return f"wrote {out}"


def _render_figures(results: Path, rows: list[Row]) -> Iterator[str]:
    """Pictures of miniatures go to a folder of their own, and with their numbers on one page."""
    drawn: list[Drawn] = []
    for figure in EVERY:
        try:
            found = runs_of(results / "runs", figure)
            miniature = any(run.facts.get("smoke") is True for run in found)
            picture = results / "figures" / ("miniature" if miniature else "") / f"{name_of(figure)}.png"
            text = _draw(results / "runs", figure, picture)
        except UserError as error:
            if (results / "runs" / folder_of(figure)).is_dir():
                yield f"left out {name_of(figure)}: {error}"
            rows.append(figure_row(figure, None))
            continue
        if miniature:
            drawn.append(Drawn(name_of(figure), picture, text))
        rows.append(figure_row(figure, picture))
        yield f"wrote {picture}"
    if drawn:
        with whole(results / "miniatures.md") as part:
            part.write_text(miniatures(drawn, results), encoding="utf-8")
        yield f"wrote {results / 'miniatures.md'}"


def _draw(runs: Path, figure: Figure, picture: Path) -> str:
    """Its text."""
    with tempfile.TemporaryDirectory() as folder:
        text = redraw(runs, figure, Path(folder), COLOURS)
        picture.parent.mkdir(parents=True, exist_ok=True)
        with whole(picture) as part:
            shutil.copyfile(Path(folder) / picture.name, part)
    return text
