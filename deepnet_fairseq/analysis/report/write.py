"""A report in the format asked for."""

from __future__ import annotations

from pathlib import Path

from ...atomic_output import check_file, whole
from .as_json import as_json
from .brief import brief, find_block, put_into
from .collect import collect, find_table
from .html import html
from .latex import latex
from .layout import lay_out
from .markdown import markdown
from .pictures import pictures

FORMATS = {
    "md": lambda report, document: markdown(document),
    "html": lambda report, document: html(document, pictures(report)),
    "tex": lambda report, document: latex(document),
    "json": as_json,
}


def report(runs: Path, table: str, form: str, out: Path | None = None, baseline: str | None = None) -> str:
    """The report of a table, one of FORMATS; written to `out` if that is given. The same runs give the same bytes.

    UserError for an unknown table or method, for runs that are not there or broken, and for a place not to be written.
    """
    return reports(runs, table, {form: out}, baseline)[form]


def reports(
    runs: Path,
    table: str,
    places: dict[str, Path | None],
    baseline: str | None = None,
    into: Path | None = None,
) -> dict[str, str]:
    """Several formats of one report, whose runs are read and compared once. places: format -> file or None.

    into: a page that gets the overview, see brief.put_into.
    """
    chosen = find_table(table)
    for place in filter(None, places.values()):
        check_file("--out", place)
    if into:
        find_block(into, table)
    found, texts = collect(runs, chosen, baseline), {}
    for form, out in places.items():
        texts[form] = FORMATS[form](found, lay_out(found, out))
        if out:
            with whole(out) as part:
                part.write_text(texts[form], encoding="utf-8")
    if into:
        put_into(into, table, brief(found, lay_out(found, into), into, next(filter(None, places.values()), None)))
    return texts
