"""A report in the formats asked for, and within another page: its overview, between two lines of that page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ...atomic_output import check_file, whole
from ...errors import UserError
from .collect import Report, collect
from .formats import as_json, html, linked, markdown, page, warnings
from .layout import DASH, Document, Grid, Text, lay_out, relative_link
from .tables import TABLES

FORMATS = {"md": markdown, "html": html, "json": as_json}
NOT_RUN = "not run"


def reports(
    runs: Path, table: str, places: dict[str, Path | None], baseline: str | None = None, into: Path | None = None
) -> dict[str, str]:
    """Several of FORMATS of one report, whose runs are read and compared once. The same runs give the same bytes.

    places: format -> file, or None to write none; into: a page that gets the overview, see put_into. UserError for an
    unknown table or method, for runs that are not there or broken, and for a place not to be written.
    """
    if table not in TABLES:
        raise UserError(f"--table {table}: no such table; choose one of {', '.join(TABLES)}")
    for place in filter(None, places.values()):
        check_file("--out", place)
    if into:
        find_block(into, table)
    found, texts = collect(runs, TABLES[table], baseline), {}
    for form, out in places.items():
        texts[form] = FORMATS[form](found, lay_out(found, out))
        if out:
            with whole(out) as part:
                part.write_text(texts[form], encoding="utf-8")
    if into:
        put_into(into, table, brief(found, lay_out(found, into), into, next(filter(None, places.values()), None)))
    return texts


def brief(report: Report, document: Document, place: Path, full: Path | None) -> str:
    """Markdown for the page `place`: banner, overview without methods that nobody ran, environments, links.

    full: the file of the whole report, if it was written.
    """
    overview, links = _shortened(document.overview, report.table.grid), _links(report, place.parent, full)
    said = {"report": report, "warnings": warnings(report), "footnotes": document.footnotes, "links": links}
    return page("brief.md", overview=overview, **said)


def _shortened(grid: Grid, by_depth: bool) -> Grid:
    """With a dash in cells that were not run; of methods by depth only those that were run at some depth."""

    def dashed(cell: Text) -> Text:
        return replace(cell, text=DASH) if cell.kind == NOT_RUN else cell

    measured = [row for row in grid.rows if any(cell.kind not in (NOT_RUN, "", "number") for cell in row)]
    return replace(grid, rows=[[dashed(cell) for cell in row] for row in (by_depth and measured) or grid.rows])


def _links(report: Report, start: Path, full: Path | None) -> str:
    folders = [report.runs / folder for folder in report.table.folders if (report.runs / folder).is_dir()]
    logs = ", ".join(linked(folder.name, relative_link(folder, start)) for folder in folders)
    whole = f"{linked('The whole table', relative_link(full, start))}; runs" if full else "Runs"
    return f"{whole} and logs: {logs}."


def put_into(page: Path, table: str, text: str) -> None:
    """Replaces what stands between <!-- report TABLE --> and <!-- /report TABLE --> in `page`; the rest stays."""
    held, block = find_block(page, table)
    first, last = _lines(table)
    with whole(page) as part:
        part.write_text(held.replace(block, f"{first}\n{text}{last}"), encoding="utf-8")


def has_block(page: Path, table: str) -> bool:
    """Has the page a place for it? UserError for one that is no text."""
    return page.is_file() and _lines(table)[0] in _read(page)


def find_block(page: Path, table: str) -> tuple[str, str]:
    """The page's text, and of it the two lines with what stands between.

    UserError if there is no such page, or these lines are not in it exactly once.
    """
    held, (first, last) = _read(page), _lines(table)
    found = re.findall(rf"^{re.escape(first)}\n(?:.*\n)*?{re.escape(last)}$", held, re.MULTILINE)
    if len(found) != 1 or held.count(first) != 1 or held.count(last) != 1:
        raise UserError(f"--into {page}: needs the lines {first} and {last}, once each; the report goes between them")
    return held, found[0]


def _lines(table: str) -> tuple[str, str]:
    return f"<!-- report {table} -->", f"<!-- /report {table} -->"


def _read(page: Path) -> str:
    check_file("--into", page)
    try:
        return page.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"--into {page}: no such page; write one first, or print the report without --into") from None
    except UnicodeDecodeError as error:
        raise UserError(f"--into {page}: is no UTF-8 text ({error.reason} at byte {error.start}); mend it") from error
