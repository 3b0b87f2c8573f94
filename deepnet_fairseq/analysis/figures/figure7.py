"""Figure 7: validation loss of deep models while learning rate, batch or width changes."""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.axes import Axes

from ...errors import UserError
from .. import paper
from ..recorded_run import RecordedRun
from ..style import style_of_setting
from .sheet import Sheet
from .summary import number, read_off, summary

PANELS = {"lr": "(a) learning rate", "batch": "(b) batches per update", "size": "(c) size (width-FFN-heads)"}


def setting(run: RecordedRun) -> str:
    """run.json's "value", which begins with a number; UserError if it does not."""
    value = str(run.facts.get("value", ""))
    if not re.match(r"\d", value):
        raise UserError(f"{run.folder / 'run.json'}: value {value!r}: must be a setting such as 5e-4 or 512-2048-8")
    return value


def magnitude(value: str) -> float:
    """What settings are sorted by: 5e-4 of "5e-4", 512 of "512-2048-8"."""
    return float(re.match(r"\d+(\.\d+)?(e-?\d+)?", value).group())


def draw(runs: list[RecordedRun], path: Path) -> str:
    """runs: "panel": "lr", "batch" or "size", "value": the setting; validation losses."""
    panels: dict[str, list[RecordedRun]] = {panel: [] for panel in PANELS}
    for run in runs:
        panels[run.choice("panel", panels)].append(run)
        setting(run)
    sheet = Sheet(3, 1, paper.SETTING[7], size=(4.2, 4.4), shared=False)
    # a run too short to be seen beside the paper's 30,000 updates gets an axis of its own
    own = max(run.validation.end for run in runs) < paper.FIGURE7_UPDATES[0]
    rows = [["panel", "setting", "source", "model", "updates", "final validation loss", "lowest"]]
    for panel, (name, title) in enumerate(PANELS.items()):
        above = sheet.paper_axis(panel, "updates (paper)") if own else None
        rows += _panel(sheet, panel, name, panels[name], above)
        x = "updates (measured)" if own else "updates"
        models = ", ".join(sorted({run.depth for run in panels[name]})) or "no run"
        sheet.label(panel, f"{title}; {models}", x, "validation loss (bits per token)")
    sheet.save(path)
    return summary(7, "validation loss", [rows], [name for name, found in panels.items() if not found])


def _panel(sheet: Sheet, panel: int, name: str, runs: list[RecordedRun], above: Axes | None) -> list[list[str]]:
    """Draws one panel and gives its rows; a setting has one colour, measured or the paper's."""
    rows, points = [], paper.FIGURE7[name]
    settings = sorted({*points, *map(setting, runs)}, key=lambda value: (magnitude(value), value))
    for rank, value in enumerate(settings):
        style = style_of_setting(rank, value)
        for run in (run for run in runs if setting(run) == value):
            curve = run.validation
            sheet.curve(panel, curve.updates, curve.losses, style, markersize=3)
            if run.diverged:
                sheet.diverged(panel, curve.end, style)
            last = number(curve.final) + (" (diverged)" if run.diverged else "")
            low = number(min(curve.losses, default=None))
            rows.append([name, value, "measured", run.depth, str(curve.end), last, low])
        if value in points:
            losses = points[value]
            sheet.paper(panel, paper.FIGURE7_UPDATES, losses, style, above)
            end = str(paper.FIGURE7_UPDATES[-1])
            rows.append([name, value, "paper", "18L-18L", end, read_off(losses[-1]), read_off(min(losses))])
    return rows
