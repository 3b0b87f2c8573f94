"""Figure 8: BLEU against the logarithm of depth, with the line L(d) = A log10 d + B."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.ticker import ScalarFormatter

from .. import paper
from ..fit import Line, line
from ..recorded_run import RecordedRun
from ..style import Style, style_of
from .sheet import Sheet
from .summary import means, number, read_off, summary


def scaling_law(points: dict[int, float]) -> Line:
    """L(d) = A log10 d + B: slope A, intercept B. points: encoder and decoder layers together -> BLEU."""
    return line(np.log10(list(points)), list(points.values()))


def draw(runs: list[RecordedRun], path: Path) -> str:
    """runs: methods at several depths, with score.json, or diverged."""
    sheet = Sheet(1, 1, paper.SETTING[8], size=(5.6, 4.4))
    fits = [["method", "points", "A (BLEU per decade)", "95%", "B", "95%", "R2"]]
    for method, theirs in paper.FIGURE8.items():
        style = style_of(method)
        sheet.paper(0, list(theirs), list(theirs.values()), style, linestyle="none")
        fits.append([f"{style.label}, paper", *_law(sheet, theirs, style, "--")])
    scores = [["layers", "method", "BLEU", "paper"]]
    missing = []
    for method in dict.fromkeys([*paper.FIGURE8, *sorted(run.method for run in runs)]):
        points, failed = _points(sheet, [run for run in runs if run.method == method], method)
        label, theirs = style_of(method).label, paper.FIGURE8.get(method, {})
        if len(points) > 1:
            fits.append([label, *_law(sheet, points, style_of(method), "-")])
        else:
            missing.append(f"{label}, scored at two depths or more")
        for layers in sorted(points.keys() | failed | theirs.keys()):
            mine = "diverged" if layers in failed - points.keys() else number(points.get(layers))
            scores.append([str(layers), label, mine, read_off(theirs.get(layers))])
    sheet.label(0, "L(d) = A log10 d + B", "layers d, encoder and decoder together", "BLEU")
    axes = sheet.panels[0]
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ScalarFormatter())
    sheet.save(path)
    return summary(8, "BLEU against the logarithm of depth", [scores, fits], missing)


def _points(sheet: Sheet, runs: list[RecordedRun], method: str) -> tuple[dict[int, float], set[int]]:
    """Draws one method; total layers -> mean BLEU, and the depths at which a run diverged."""
    points = means((run.total_layers, run.bleu) for run in runs if not run.diverged)
    failed = {run.total_layers for run in runs if run.diverged}
    if points:
        sheet.curve(0, list(points), list(points.values()), style_of(method), linestyle="none")
    for layers in sorted(failed):
        sheet.diverged(0, layers, style_of(method))
    return points, failed


def _law(sheet: Sheet, points: dict[int, float], style: Style, dash: str) -> list[str]:
    """Draws the line; its cells in the table."""
    law = scaling_law(points)
    ends = np.array([min(points), max(points)], float)
    sheet.panels[0].plot(ends, law(np.log10(ends)), dash, color=style.colour, linewidth=1.2)
    errors = [f"+-{number(error)}" for error in (law.slope_error, law.intercept_error)]
    return [str(len(points)), f"{law.slope:.2f}", errors[0], f"{law.intercept:.2f}", errors[1], number(law.r2)]
