"""Pictures of a report: loss curves of its runs, and the figure of the paper that they fill."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..figures import FIGURES
from ..figures.sheet import Sheet
from ..style import style_of
from .collect import Report
from .entry import Entry, State

COLUMNS = 2


def pictures(report: Report) -> dict[str, bytes]:
    """Title -> PNG; the same runs give the same bytes."""
    found = {}
    if curves := _with_log(report):
        found["Training loss"] = _drawn(lambda path: _loss_curves(curves, path))
    figure, over = report.table.figure, (State.SCORED, State.DIVERGED)
    runs = [entry.run for entry in report.entries if entry.standing.state in over]
    square = [run for run in runs if run.decoder_layers == run.encoder_layers]
    if figure and square:
        found[f"Figure {figure}"] = _drawn(lambda path: FIGURES[figure](square, path))
    return found


def _drawn(draw: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.png"
        draw(path)
        return path.read_bytes()


def _with_log(report: Report) -> dict[str, list[Entry]]:
    """Depth -> runs with something in their log, in the order of the table."""
    found: dict[str, list[Entry]] = {}
    for result in report.results:
        for entry in result.entries:
            if entry.updates is not None:
                found.setdefault(result.depth, []).append(entry)
    return found


def _loss_curves(curves: dict[str, list[Entry]], path: Path) -> None:
    """A panel a depth, a curve a run in its method's colour, a cross where one diverged."""
    columns = min(COLUMNS, len(curves))
    sheet = Sheet(columns, math.ceil(len(curves) / columns), "")
    for panel, (depth, entries) in enumerate(curves.items()):
        for entry in entries:
            log, style = entry.run.log, style_of(entry.run.method)
            every = max(1, len(log.updates) // 6)
            sheet.curve(panel, log.updates, log.losses, style, linewidth=1.2, markevery=every)
            if entry.standing.state is State.DIVERGED:
                sheet.diverged(panel, log.updates[-1], style)
        sheet.label(panel, depth, "updates", "training loss (bits per token)")
    for axes in sheet.panels[len(curves) :]:
        axes.set_visible(False)
    sheet.save(path)
