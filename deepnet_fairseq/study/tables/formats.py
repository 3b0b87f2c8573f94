"""A report as GitHub's Markdown, as one HTML page that needs nothing else, with its pictures, and as JSON."""

from __future__ import annotations

import base64
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import jinja2

from ...errors import UserError
from ...files import check_file, whole
from ..runs import RecordedRun
from .collect import TableReport, collect
from .definitions import TABLES
from .layout import BANNER, Document, Grid, Text, lay_out
from .result import Entry, Result, State

SPECIAL = re.compile(r"([\\`*_\[\]<>|&~$#])")


def markdown(report: TableReport, document: Document) -> str:
    """Ends in a line break; see page.md."""
    return page("page.md", report=report, document=document, warnings=_warnings(report))


def _warnings(report: TableReport) -> list[str]:
    """The banner and the warnings, paragraphs of Markdown."""
    banner = [f"> **{escape(BANNER)}**"] if report.miniature else []
    return banner + [f"> **Warning:** {escape(warning)}" for warning in report.warnings]


def escape(text: str) -> str:
    """Plain text as Markdown of one line."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def linked(text: str, to: str) -> str:
    """Markdown `text` as a link."""
    return f"[{text}]({to})" if re.fullmatch(r"[^\s()<>]+", to) else f"[{text}](<{to}>)"


def grid_text(grid: Grid) -> str:
    """The table alone, in Markdown: cells as wide as their texts, so that one number changes one line."""
    aligned = ["---" if words else "---:" for words in grid.of_words]
    rows = [list(map(escape, grid.header)), aligned, *([_text(cell) for cell in row] for row in grid.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _text(cell: Text) -> str:
    text = linked(escape(cell.text), cell.link) if cell.link else escape(cell.text)
    marks = f"<sup>{', '.join(cell.marks)}</sup>" if cell.marks else ""
    return text + marks + (f" ({escape(cell.paper)})" if cell.paper else "")


def html(report: TableReport, document: Document) -> str:
    """The page, which refers to nothing but logs and papers; see page.html."""
    drawn = {title: base64.b64encode(png).decode("ascii") for title, png in pictures(report).items()}
    return page("page.html", report=report, document=document, pictures=drawn, banner=BANNER)


def page(template: str, **values: object) -> str:
    """One of the templates beside this file, with these values."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=jinja2.select_autoescape(["html"]),
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {"plain": escape, "grid": grid_text}
    return environment.get_template(template).render(**values)


def pictures(report: TableReport) -> dict[str, bytes]:
    """Title -> PNG; the same runs give the same bytes."""
    from ..figures import FIGURES  # which needs matplotlib, as no other format does
    from ..figures.losses import training_losses

    found: dict[str, bytes] = {}
    curves: dict[str, list[RecordedRun]] = {}  # depth -> runs with something in their log, in the order of the table
    for result in report.results:
        for entry in result.entries:
            if entry.updates is not None:
                curves.setdefault(result.depth, []).append(entry.run)
    if curves:
        found["Training loss"] = _drawn(lambda path: training_losses(curves, path))
    figure, over = report.table.figure, (State.SCORED, State.DIVERGED, State.STUCK)
    runs = [entry.run for entry in report.entries if entry.status.state in over]
    square = [run for run in runs if run.decoder_layers == run.encoder_layers]
    if figure and square:
        found[f"Figure {figure}"] = _drawn(lambda path: FIGURES[figure](square, path))
    return found


def _drawn(draw: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.png"
        draw(path)
        return path.read_bytes()


def as_json(report: TableReport, document: Document) -> str:
    """The report as one object, with the keys of docs/reports.md, which stay; ends in a line break."""
    table = report.table
    content = {
        "format": 1,
        "table": table.name,
        "title": table.title,
        "paper": {**table.paper, "place": table.place},
        "metric": _picked(table.metric, "name", "higher_is_better"),
        "columns": [_picked(column, "key", "name") for column in table.columns],
        "baseline": report.baseline or None,
        "miniature": report.miniature,
        "warnings": report.warnings,
        "notes": document.notes,
        "results": [_result(result, report.miniature) for result in report.results],
        "runs": [_run(report, entry, document) for entry in report.entries],
        "environments": report.environments,
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _picked(thing: object, *names: str) -> dict:
    return {name: getattr(thing, name) for name in names}


def _result(result: Result, miniature: bool) -> dict:
    cells = {
        key: {"state": cell.state.value, "n": len(cell.values)}
        | _picked(cell, "mean", "sd", "published")
        | {"difference": None if miniature else cell.difference}
        | {"others": [str(status) for status in cell.without_value]}
        for key, cell in result.cells.items()
    }
    return _picked(result, "label", "method", "norm", "depth", "layers") | {
        "facts": dict(result.row.facts),
        "parameters": result.parameters,
        "published_parameters": result.row.parameters or None,
        "cells": cells,
        "runs": [entry.name for entry in result.entries],
        "best": [entry.name for entry in result.best],
    }


def _run(report: TableReport, entry: Entry, document: Document) -> dict:
    amount, unit = entry.cost or (None, None)
    found = {"name": entry.name} | _picked(entry.run, "method", "encoder_layers", "decoder_layers", "seed")
    found |= {
        "state": entry.status.state.value,
        "diverged_at": entry.run.diverged_at,
        "values": {column.key: column.read(entry.score) for column in report.table.columns},
        "score": entry.score or None,
        "baseline_run": entry.baseline,
    }
    return (
        found
        | _picked(entry, "p", "parameters", "updates")
        | {"wall_hours": entry.run.hours, "cost_hours": amount, "cost_unit": unit, "environment": entry.environment}
        | {"log": document.logs.get(entry.name), "command": entry.run.command, "facts": entry.run.facts}
    )


FORMATS = {"md": markdown, "html": html, "json": as_json}


def render_report(runs: Path, table: str, paths: dict[str, Path | None], baseline: str | None = None) -> dict[str, str]:
    """Several of FORMATS of one report, whose runs are read and compared once. The same runs give the same bytes.

    paths: format -> file, or None to write none. UserError for an unknown table or method, for runs that are not there
    or broken, and for a path not to be written.
    """
    if table not in TABLES:
        raise UserError(f"--table {table}: no such table; choose one of {', '.join(TABLES)}")
    for path in filter(None, paths.values()):
        check_file("--out", path)
    found, texts = collect(runs, TABLES[table], baseline), {}
    for form, out in paths.items():
        texts[form] = FORMATS[form](found, lay_out(found, out))
        if out:
            with whole(out) as part:
                part.write_text(texts[form], encoding="utf-8")
    return texts
