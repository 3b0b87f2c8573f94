"""Figures 5, 6 and 8: the early model update and BLEU against depth, and the laws that the points follow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.ticker import ScalarFormatter
from scipy import stats

from ...core.methods import METHODS, get_method
from ...errors import UserError
from .. import paper
from ..runs import RecordedRun
from ..style import Style, style_of
from .sheet import Sheet, means, number, read_off, summary

CONFIDENCE = 0.95  # of the intervals
COMPARED = ("post_ln", "deepnorm")  # in Figure 5
ASKED = (50, 100)  # layers where they are compared
PANELS = {"post": "(a) Post-LN", "none": "(b) no LN", "pre": "(c) Pre-LN"}  # of Figure 6
EVERYWHERE = "deepnorm"


@dataclass(frozen=True)
class Line:
    """y = slope x + intercept by least squares; r2: share of y's variance on the line.

    slope_error, intercept_error: half of the 95% confidence interval (Student's t); NaN for two points.
    """

    slope: float
    intercept: float
    slope_error: float
    intercept_error: float
    r2: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.slope * x + self.intercept


def scaling_law(points: dict[int, float]) -> Line:
    """y = A log10 x + B by ordinary least squares, of two points x -> y or more: slope A, intercept B."""
    regression = stats.linregress(np.log10(list(points)), list(points.values()))
    t = stats.t.ppf((1 + CONFIDENCE) / 2, len(points) - 2) if len(points) > 2 else math.nan
    errors = t * regression.stderr, t * regression.intercept_stderr
    return Line(regression.slope, regression.intercept, *errors, regression.rvalue**2)


def power_law(points: dict[int, float]) -> Line:
    """y = 10^intercept x^slope, fitted as a line in log10 x and log10 y; both must be above 0."""
    return scaling_law({x: math.log10(y) for x, y in points.items()})


def figure5(runs: list[RecordedRun], path: Path) -> str:
    """The model update early in training grows with depth under Post-LN, and far less under DeepNorm.

    runs: both methods at several depths, "update": U, probed at update U; UserError if U is not the same for all.
    """
    for run in runs:
        run.choice("method", COMPARED)
        if early(run) != early(runs[0]):
            raise UserError(f"{run.where()}: update {early(run)}, others {early(runs[0])}; move one away")
    sheet = Sheet(2, 1, paper.SETTING[5], size=(4.8, 4.2))
    points = {method: _updates(sheet, [run for run in runs if run.method == method], method) for method in COMPARED}
    when = f"after {early(runs[0])} updates"
    for panel, title in enumerate((f"(a) {when}, axes as in the paper", f"(b) {when}, with power laws")):
        sheet.label(panel, title, "layers N of an N-N model", "model update ||F(x,θᵢ) - F(x,θ₀)||")
    sheet.panels[1].set(xscale="log", yscale="log")
    sheet.panels[1].xaxis.set_major_formatter(ScalarFormatter())
    sheet.save(path)
    missing = [f"{style_of(method).label} (at two depths or more)" for method in COMPARED if len(points[method]) < 2]
    return summary(5, f"model update of the decoder {when}", [_slopes(points), _ratios(points)], missing)


def early(run: RecordedRun) -> int:
    """U, the number of updates after which the paper's figure is taken; UserError if run.json names none."""
    update = run.facts.get("update")
    if not isinstance(update, int) or update < 1:
        raise UserError(f"{run.where()}: update {update!r}: must be a number of updates, 1 or more")
    return update


def _updates(sheet: Sheet, runs: list[RecordedRun], method: str) -> dict[int, float]:
    """Draws both panels of one method; layers -> mean update of the decoder of the runs that stayed finite."""
    style, theirs = style_of(method), paper.FIGURE5[method]
    updates = [(run.layers, run.probe(early(run), "model_update").get("decoder", np.nan)) for run in runs]
    points = means((layers, update) for layers, update in updates if np.isfinite(update) and update > 0)
    failed = {layers for layers, update in updates if not np.isfinite(update)}
    for panel, joined in enumerate(("-", "none")):
        sheet.paper(panel, list(theirs), list(theirs.values()), style, markersize=3, linestyle="none")
        sheet.points(panel, points, failed, style, linestyle=joined)
    for values, dash in ((theirs, "--"), (points, "-")):
        if len(values) > 1:
            law = power_law(values)
            _draw_law(sheet, 1, values, lambda x, law=law: 10 ** law(x), style, dash)
    return points


def _draw_law(sheet: Sheet, panel: int, points: dict[int, float], law, style: Style, dash: str) -> None:
    """A line between the ends of the points; law: of log10 x."""
    ends = np.array([min(points), max(points)], float)
    sheet.panels[panel].plot(ends, law(np.log10(ends)), dash, color=style.colour, linewidth=1.2)


def _slopes(points: dict[str, dict[int, float]]) -> list[list[str]]:
    """Exponents p of update ~ N^p, with 95% confidence, and how the law grows over the depths there are."""
    rows = [["method", "source", "layers", "slope", "95%", "R2", "growth by the law"]]
    for method in COMPARED:
        for source, values in (("measured", points[method]), ("paper", paper.FIGURE5[method])):
            if len(values) > 1:
                law, low, high = power_law(values), min(values), max(values)
                rows.append([
                    style_of(method).label, source, f"{low} to {high}", f"{law.slope:.2f}",
                    f"+-{number(law.slope_error, 2)}", number(law.r2), f"x{number((high / low) ** law.slope)}",
                ])  # fmt: skip
    return rows


def _ratios(points: dict[str, dict[int, float]]) -> list[list[str]]:
    """Post-LN over DeepNorm at the measured depths nearest to those asked for."""
    rows = [["layers", "Post-LN / DeepNorm", "paper, by its points", "paper, by its laws"]]
    both = points["post_ln"].keys() & points["deepnorm"].keys()
    nearest = {min(both, key=lambda layers: (abs(layers - asked), layers)) for asked in ASKED if both}
    for layers in sorted(nearest | set(ASKED)):
        mine = points["post_ln"][layers] / points["deepnorm"][layers] if layers in both else None
        theirs = paper.FIGURE5["post_ln"].get(layers, np.nan) / paper.FIGURE5["deepnorm"].get(layers, np.nan)
        laws = [10 ** float(power_law(paper.FIGURE5[method])(np.log10(layers))) for method in COMPARED]
        rows.append([str(layers), number(mine), number(theirs), number(laws[0] / laws[1])])
    return rows


def group(norm: str) -> list[str]:
    """Methods of one panel of Figure 6: DeepNorm, those of the paper, then others."""
    rest = [name for name in METHODS if get_method(name).norm == norm and name != EVERYWHERE]
    return [EVERYWHERE, *sorted(rest, key=lambda name: (name not in paper.FIGURE6, name))]


def figure6(runs: list[RecordedRun], path: Path) -> str:
    """BLEU against depth, methods by where their LayerNorm stands, DeepNorm in each panel.

    runs: methods at several depths, with score.json, or diverged.
    """
    sheet = Sheet(3, 1, paper.SETTING[6], size=(4.2, 4.4), shared=False)
    rows, missing, columns = [], [], sorted({run.layers for run in runs} | set(paper.FIGURE6_LAYERS))
    for panel, (norm, title) in enumerate(PANELS.items()):
        for method in group(norm):
            style, theirs, found = style_of(method), paper.FIGURE6.get(method), [r for r in runs if r.method == method]
            if theirs:
                sheet.paper(panel, paper.FIGURE6_LAYERS, theirs, style)
            scores = means((run.layers, run.bleu) for run in found if not run.diverged)
            failed = {run.layers for run in found if run.diverged}
            sheet.points(panel, scores, failed, style)
            if method == EVERYWHERE and panel:
                continue
            if found:
                cells = [f"{number(scores.get(n)) * (n in scores)} {'x' * (n in failed)}".strip() for n in columns]
                rows.append([style.label, *(cell or "-" for cell in cells)])
            else:
                missing.append(style.label)
            if theirs:
                at = dict(zip(paper.FIGURE6_LAYERS, theirs, strict=True))
                rows.append([f"{style.label}, paper", *(read_off(at.get(n)) for n in columns)])
        sheet.label(panel, title, "layers N of an N-N model", "BLEU")
    sheet.save(path)
    return summary(6, "BLEU against depth", [[["method", *map(str, columns)], *rows]], missing)


def figure8(runs: list[RecordedRun], path: Path) -> str:
    """BLEU against the logarithm of depth, encoder and decoder layers together, with the line L(d) = A log10 d + B.

    runs: methods at several depths, with score.json, or diverged.
    """
    sheet = Sheet(1, 1, paper.SETTING[8], size=(5.6, 4.4))
    fits = [["method", "points", "A (BLEU per decade)", "95%", "B", "95%", "R2"]]
    for method, theirs in paper.FIGURE8.items():
        style = style_of(method)
        sheet.paper(0, list(theirs), list(theirs.values()), style, linestyle="none")
        fits.append([f"{style.label}, paper", *_fitted(sheet, theirs, style, "--")])
    scores = [["layers", "method", "BLEU", "paper"]]
    missing = []
    for method in dict.fromkeys([*paper.FIGURE8, *sorted(run.method for run in runs)]):
        style, theirs, found = style_of(method), paper.FIGURE8.get(method, {}), [r for r in runs if r.method == method]
        points = means((run.total_layers, run.bleu) for run in found if not run.diverged)
        failed = {run.total_layers for run in found if run.diverged}
        sheet.points(0, points, failed, style, linestyle="none")
        if len(points) > 1:
            fits.append([style.label, *_fitted(sheet, points, style, "-")])
        else:
            missing.append(f"{style.label}, scored at two depths or more")
        for layers in sorted(points.keys() | failed | theirs.keys()):
            mine = "diverged" if layers in failed - points.keys() else number(points.get(layers))
            scores.append([str(layers), style.label, mine, read_off(theirs.get(layers))])
    sheet.label(0, "L(d) = A log10 d + B", "layers d, encoder and decoder together", "BLEU")
    sheet.panels[0].set_xscale("log")
    sheet.panels[0].xaxis.set_major_formatter(ScalarFormatter())
    sheet.save(path)
    return summary(8, "BLEU against the logarithm of depth", [scores, fits], missing)


def _fitted(sheet: Sheet, points: dict[int, float], style: Style, dash: str) -> list[str]:
    """Draws the line; its cells in the table."""
    law = scaling_law(points)
    _draw_law(sheet, 0, points, law, style, dash)
    errors = [f"+-{number(error)}" for error in (law.slope_error, law.intercept_error)]
    return [str(len(points)), f"{law.slope:.2f}", errors[0], f"{law.intercept:.2f}", errors[1], number(law.r2)]
