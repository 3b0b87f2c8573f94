"""A report laid out as a document."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from .collect import Report
from .document import Document
from .environment import described
from .notes import notes
from .overview import beside_paper, overview
from .run_list import method_list, run_list

BANNER = "Miniature on generated data: numbers say nothing about the paper's."


def lay_out(report: Report, out: Path | None) -> Document:
    """out: the file it is written to; links to logs are relative to its folder, without one to RUNS."""
    logs = _logs(report, out.resolve().parent if out else report.runs.resolve())
    return Document(
        title=f"{report.table.place}: {report.table.title}",
        source=f"{report.table.place} of {report.table.paper.citation}",
        link=report.table.paper.url,
        banner=BANNER if report.miniature else "",
        warnings=report.warnings,
        overview=overview(report),
        grids=[beside_paper(report), run_list(report, logs), method_list(report)],
        footnotes={letter: described(environment) for letter, environment in report.environments.items()},
        notes=notes(report),
        commands=_commands(report),
        logs=logs,
    )


def _logs(report: Report, start: Path) -> dict[str, str]:
    """Name of a run -> address of its log."""
    paths = {entry.name: entry.run.folder / "train.log" for entry in report.entries}
    return {
        name: quote(Path(os.path.relpath(path.resolve(), start)).as_posix())
        for name, path in paths.items()
        if path.exists()
    }


def _commands(report: Report) -> dict[str, str]:
    """Name of a run -> how it was trained."""
    paths = {entry.name: entry.run.folder / "command" for entry in report.entries}
    return {
        name: path.read_text(encoding="utf-8", errors="replace").strip()
        for name, path in paths.items()
        if path.exists()
    }
