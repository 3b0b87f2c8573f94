"""A report within another page: its overview, between two lines of that page, and where the whole report lies."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from ...atomic_output import check_file, whole
from ...errors import UserError
from .collect import Report
from .document import Document, Grid, Text
from .markdown import escape, grid_text, linked
from .numbers import DASH

NOT_RUN = "not run"


def brief(report: Report, document: Document, page: Path, full: Path | None) -> str:
    """Markdown for `page`: banner, overview without methods that nobody ran, environments, links to report and runs.

    full: the file of the whole report, if it was written.
    """
    parts = [f"> **{escape(document.banner)}**"] if document.banner else []
    parts += [f"> **Warning:** {escape(warning)}" for warning in document.warnings]
    parts.append(f"{escape(document.source)}. {escape(document.overview.caption)}:")
    parts.append(grid_text(_shortened(document.overview, report.table.grid)))
    several = len(document.footnotes) > 1
    trained = "; ".join(
        f"<sup>{letter}</sup> {escape(text)}" if several else escape(text)
        for letter, text in document.footnotes.items()
    )
    parts.append(f"Recorded by `{report.table.script}`, trained with {trained}. {_links(report, page, full)}")
    return "\n\n".join(parts) + "\n"


def put_into(page: Path, table: str, text: str) -> None:
    """Replaces what stands between <!-- report TABLE --> and <!-- /report TABLE --> in `page`; the rest stays."""
    held, block = find_block(page, table)
    with whole(page) as part:
        part.write_text(held.replace(block, f"{_first(table)}\n{text}{_last(table)}"), encoding="utf-8")


def has_block(page: Path, table: str) -> bool:
    """Has the page a place for it? UserError for one that is no text."""
    return page.is_file() and _first(table) in _read(page)


def find_block(page: Path, table: str) -> tuple[str, str]:
    """The page's text, and of it the two lines with what stands between.

    UserError if there is no such page, or these lines are not in it exactly once.
    """
    held, first, last = _read(page), _first(table), _last(table)
    found = re.findall(rf"^{re.escape(first)}\n(?:.*\n)*?{re.escape(last)}$", held, re.MULTILINE)
    if len(found) != 1 or held.count(first) != 1 or held.count(last) != 1:
        raise UserError(f"--into {page}: needs the lines {first} and {last}, once each; the report goes between them")
    return held, found[0]


def _first(table: str) -> str:
    return f"<!-- report {table} -->"


def _last(table: str) -> str:
    return f"<!-- /report {table} -->"


def _read(page: Path) -> str:
    check_file("--into", page)
    try:
        return page.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"--into {page}: no such page; write one first, or print the report without --into") from None
    except UnicodeDecodeError as error:
        raise UserError(f"--into {page}: is no UTF-8 text ({error.reason} at byte {error.start}); mend it") from error


def _shortened(grid: Grid, by_depth: bool) -> Grid:
    """With a dash in cells that were not run; of methods by depth only those that were run at some depth."""
    measured = [row for row in grid.rows if any(cell.kind not in (NOT_RUN, "", "number") for cell in row)]
    return replace(grid, rows=[[_dash(cell) for cell in row] for row in (by_depth and measured) or grid.rows])


def _dash(cell: Text) -> Text:
    return replace(cell, text=DASH) if cell.kind == NOT_RUN else cell


def _links(report: Report, page: Path, full: Path | None) -> str:
    def link(text: str, to: Path) -> str:
        return linked(text, quote(Path(os.path.relpath(to.resolve(), page.resolve().parent)).as_posix()))

    folders = [report.runs / folder for folder in report.table.folders if (report.runs / folder).is_dir()]
    logs = "runs and logs: " + ", ".join(link(folder.name, folder) for folder in folders)
    return f"{link('The whole table', full)}; {logs}." if full else f"{logs[0].upper()}{logs[1:]}."
