"""Losses over updates: Figure 7 of the DeepNet paper, and `depth`, what the runs of scripts/quickstart.sh show."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...errors import UserError
from .. import paper
from ..recorded_run import RecordedRun
from ..style import style_of, style_of_setting
from .sheet import Sheet, number, page, read_off, save, summary

PANELS = {"lr": "(a) learning rate", "batch": "(b) batches per update", "size": "(c) size (width-FFN-heads)"}
WIDTH, HEIGHT, DPI = 9.0, 3.3, 200  # of `depth`, inches; read at half its pixels
APART = 0.6  # bits between two labels


def setting(run: RecordedRun) -> str:
    """run.json's "value", which begins with a number; UserError if it does not."""
    value = str(run.facts.get("value", ""))
    if not re.match(r"\d", value):
        raise UserError(f"{run.folder / 'run.json'}: value {value!r}: must be a setting such as 5e-4 or 512-2048-8")
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


def depth(runs: list[RecordedRun], path: Path) -> str:
    """Training loss of N-N models, several methods at each depth, a panel each.

    A curve is named at its end with its loss and BLEU; the text has a row for each run.
    """
    depths = sorted({run.layers for run in runs})
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    panels = figure.subplots(1, len(depths), sharey=True, squeeze=False)[0]
    for axes, layers in zip(panels, depths, strict=True):
        _at_depth(axes, [run for run in runs if run.layers == layers])
    panels[0].set_ylabel("training loss (bits per token)")
    figure.suptitle(finding(runs), fontsize=11)
    save(figure, path, DPI)
    return page("Training loss by depth", [rows_by_depth(runs)], (), "runs of scripts/quickstart.sh, one CPU")


def rows_by_depth(runs: list[RecordedRun]) -> list[list[str]]:
    """A header, and one row a run: its model, its final loss (bits a token), its BLEU."""
    rows = [["model", "method", "seed", "updates", "final loss", "BLEU", "training"]]
    for run in sorted(runs, key=lambda run: (run.layers, run.method)):
        bleu, log = _bleu(run), run.log
        rows.append([
            run.depth, style_of(run.method).label, str(run.seed), str(log.updates[-1]), f"{log.final_loss():.2f}",
            "-" if bleu is None else f"{bleu:.2f}", f"{log.seconds:.0f} s",
        ])  # fmt: skip
    return rows


def _at_depth(axes: Axes, runs: list[RecordedRun]) -> None:
    for run in runs:
        axes.plot(run.log.updates, run.log.losses, color=style_of(run.method).colour, linewidth=1.6)
    lowest, *others = sorted(runs, key=lambda run: run.log.losses[-1])
    end, height = max(run.log.updates[-1] for run in runs), lowest.log.losses[-1]
    _name(axes, lowest, (end, height), -6)  # below, for a falling curve comes from above
    for run in others:
        height = max(run.log.losses[-1], height + APART)
        _name(axes, run, (end, height), 6)
    axes.set_title(f"{runs[0].layers} encoder + {runs[0].layers} decoder layers", fontsize=9.5)
    axes.set_xlabel("updates")
    axes.set_xlim(0, end)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _name(axes: Axes, run: RecordedRun, end: tuple[float, float], points: int) -> None:
    """Writes what the curve is, so many points above its end."""
    style, bleu = style_of(run.method), _bleu(run)
    found = f"{run.log.final_loss():.1f}" + (f", BLEU {bleu:.0f}" if bleu is not None else "")
    if run.ended_in_nan:
        found = f"diverged at update {run.diverged_at or run.log.updates[-1]}"
    place = {"xytext": (0, points), "textcoords": "offset points", "ha": "right"}
    place["va"] = "bottom" if points > 0 else "top"
    axes.annotate(f"{style.label} {found}", end, color=style.colour, fontsize=8.5, **place)


def _bleu(run: RecordedRun) -> float | None:
    return run.score.get("bleu") if run.score else None


def finding(runs: list[RecordedRun]) -> str:
    """The picture's title: where each method ends, from the shallowest model to the deepest."""
    depths = sorted({run.layers for run in runs})
    found: dict[str, list[str]] = {}
    for run in sorted(runs, key=lambda run: run.layers):
        found.setdefault(style_of(run.method).label, []).append(f"{run.log.final_loss():.1f}")
    words = "; ".join(f"{label} ends at {_listed(losses)} bits" for label, losses in found.items())
    return f"{_listed(map(str, depths))} layers: {words}"


def _listed(words: Iterable[str]) -> str:
    """Each once."""
    *most, last = dict.fromkeys(words)
    return f"{', '.join(most)} and {last}" if most else last
