"""Losses over updates: Figure 7 of the DeepNet paper, and training losses, as those of the quickstart's runs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path

from matplotlib.axes import Axes

from ...errors import UserError
from .. import paper
from ..runs import RecordedRun
from ..style import style_of, style_of_setting
from .sheet import Sheet, models, number, page, read_off, summary

PANELS = {"lr": "(a) learning rate", "batch": "(b) batches per update", "size": "(c) size (width-FFN-heads)"}
COLUMNS = 2  # of panels of training losses


def setting(run: RecordedRun) -> str:
    """run.json's "value", which begins with a number; UserError if it does not."""
    value = str(run.facts.get("value", ""))
    if not re.match(r"\d", value):
        raise UserError(f"{run.where()}: value {value!r}: must be a setting such as 5e-4 or 512-2048-8")
    return value


def magnitude(value: str) -> float:
    """What settings are sorted by: 5e-4 of "5e-4", 512 of "512-2048-8"."""
    return float(re.match(r"\d+(\.\d+)?(e-?\d+)?", value).group())


def figure7(runs: list[RecordedRun], path: Path) -> str:
    """Validation loss of deep models while learning rate, batch or width changes.

    runs: "panel": "lr", "batch" or "size", "value": the setting; validation losses.
    """
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
        sheet.label(panel, f"{title}; {models(panels[name])}", x, "validation loss (bits per token)")
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
            last = sheet.validation(panel, run, curve.updates, style)
            low = number(min(curve.losses, default=None))
            rows.append([name, value, "measured", run.depth, str(curve.end), last, low])
        if value in points:
            losses = points[value]
            sheet.paper(panel, paper.FIGURE7_UPDATES, losses, style, above)
            end = str(paper.FIGURE7_UPDATES[-1])
            rows.append([name, value, "paper", "18L-18L", end, read_off(losses[-1]), read_off(min(losses))])
    return rows


def training_losses(groups: dict[str, list[RecordedRun]], path: Path, title: str = "") -> None:
    """A panel a group, by its name; a curve a run in its method's colour, a cross where its numbers ended."""
    columns = min(COLUMNS, len(groups))
    sheet = Sheet(columns, math.ceil(len(groups) / columns), "", size=(4.5, 3.3))
    for panel, (name, runs) in enumerate(groups.items()):
        for run in runs:
            log, style = run.log, style_of(run.method)
            sheet.curve(panel, log.updates, log.losses, style, markevery=max(1, len(log.updates) // 6))
            if run.ended_in_nan or run.stuck:
                sheet.diverged(panel, log.updates[-1], style)
        sheet.label(panel, name, "updates", "training loss (bits per token)")
        sheet.panels[panel].set_ylim(bottom=0)
    for axes in sheet.panels[len(groups) :]:
        axes.set_visible(False)
    sheet.figure.suptitle(title, fontsize=11)
    sheet.save(path, dpi=200)


def depth(runs: list[RecordedRun], path: Path) -> str:
    """Training loss of N-N models, several methods at each depth, a panel each; the text has a row for each run."""
    groups: dict[str, list[RecordedRun]] = {}
    for run in sorted(runs, key=lambda run: run.layers):
        groups.setdefault(f"{run.layers} encoder + {run.layers} decoder layers", []).append(run)
    training_losses(groups, path, finding(runs))
    return page("Training loss by depth", [rows_by_depth(runs)], (), "runs of scripts/quickstart.sh, one CPU")


def rows_by_depth(runs: list[RecordedRun]) -> list[list[str]]:
    """A header, and one row a run: its model, its final loss (bits a token), its BLEU."""
    rows = [["model", "method", "seed", "updates", "final loss", "BLEU", "training"]]
    for run in sorted(runs, key=lambda run: (run.layers, run.method)):
        log = run.log
        rows.append([
            run.depth, style_of(run.method).label, str(run.seed), str(log.updates[-1]), f"{log.final_loss():.2f}",
            f"{run.bleu:.2f}" if run.score else "-", f"{log.seconds:.0f} s",
        ])  # fmt: skip
    return rows


def finding(runs: list[RecordedRun]) -> str:
    """The picture's title: where each method ends, from the shallowest model to the deepest."""
    found: dict[str, list[RecordedRun]] = {}
    for run in sorted(runs, key=lambda run: run.layers):
        found.setdefault(style_of(run.method).label, []).append(run)
    words = []
    for label, those in found.items():
        bleu = _listed(f"{run.bleu:.0f}" for run in those if run.score)
        losses = _listed(f"{run.log.final_loss():.1f}" for run in those)
        words.append(f"{label} ends at {losses} bits" + (f", BLEU {bleu}" if bleu else ""))
    return f"{_listed(str(layers) for layers in sorted({run.layers for run in runs}))} layers: " + ";\n".join(words)


def _listed(words: Iterable[str]) -> str:
    """Each once."""
    *most, last = dict.fromkeys(words) or [""]
    return f"{', '.join(most)} and {last}" if most else last
