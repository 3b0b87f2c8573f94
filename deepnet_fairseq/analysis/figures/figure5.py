"""Figure 5: the model update early in training grows with depth under Post-LN, and far less under DeepNorm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.ticker import ScalarFormatter

from ...errors import UserError
from .. import paper
from ..fit import Line, power_law
from ..recorded_run import RecordedRun
from ..style import style_of
from .sheet import Sheet
from .summary import means, number, summary

METHODS = ("post_ln", "deepnorm")
PAPER = {
    "post_ln": dict(zip(paper.FIGURE5_LAYERS, paper.FIGURE5_POST_LN, strict=True)),
    "deepnorm": dict(zip(paper.FIGURE5_LAYERS, paper.FIGURE5_DEEPNORM, strict=True)),
}
ASKED = (50, 100)  # layers where the methods are compared


def update_of(run: RecordedRun) -> float:
    """||F(x, theta_U) - F(x, theta_0)|| of the decoder, U from run.json; NaN if the probe left the decoder out."""
    return run.probe(early(run), "model_update").get("decoder", np.nan)


def early(run: RecordedRun) -> int:
    """U, the number of updates after which the paper's figure is taken; UserError if run.json names none."""
    update = run.facts.get("update")
    if not isinstance(update, int) or update < 1:
        raise UserError(f"{run.folder / 'run.json'}: update {update!r}: must be a number of updates, 1 or more")
    return update


def draw(runs: list[RecordedRun], path: Path) -> str:
    """runs: both methods at several depths, "update": U, probed at update U; UserError if U is not the same for all."""
    for run in runs:
        run.choice("method", METHODS)
        if early(run) != early(runs[0]):
            raise UserError(f"{run.folder / 'run.json'}: update {early(run)}, others {early(runs[0])}; move one away")
    sheet = Sheet(2, 1, paper.SETTING[5], size=(4.8, 4.2))
    points = {method: _points(sheet, [run for run in runs if run.method == method], method) for method in METHODS}
    when = f"after {early(runs[0])} updates"
    for panel, title in enumerate((f"(a) {when}, axes as in the paper", f"(b) {when}, with power laws")):
        sheet.label(panel, title, "layers N of an N-N model", "model update ||F(x,θᵢ) - F(x,θ₀)||")
    sheet.panels[1].set(xscale="log", yscale="log")
    sheet.panels[1].xaxis.set_major_formatter(ScalarFormatter())
    sheet.save(path)
    missing = [f"{style_of(method).label} (at two depths or more)" for method in METHODS if len(points[method]) < 2]
    return summary(5, f"model update of the decoder {when}", [_slopes(points), _ratios(points)], missing)


def _points(sheet: Sheet, runs: list[RecordedRun], method: str) -> dict[int, float]:
    """Draws both panels of one method; layers -> mean update of the runs that stayed finite."""
    style, theirs = style_of(method), PAPER[method]
    updates = [(run.layers, update_of(run)) for run in runs]
    points = means((layers, update) for layers, update in updates if np.isfinite(update) and update > 0)
    for panel in (0, 1):
        sheet.paper(panel, list(theirs), list(theirs.values()), style, markersize=3, linestyle="none")
        if points:
            sheet.curve(panel, list(points), list(points.values()), style, linestyle="none" if panel else "-")
        for layers, update in updates:
            if not np.isfinite(update):
                sheet.diverged(panel, layers, style)
    for values, straight in ((theirs, "--"), (points, "-")):
        if len(values) > 1:
            ends = np.array([min(values), max(values)], float)
            heights = 10 ** _law(values)(np.log10(ends))
            sheet.panels[1].plot(ends, heights, straight, color=style.colour, linewidth=1.2)
    return points


def _law(points: dict[int, float]) -> Line:
    return power_law(list(points), list(points.values()))


def _slopes(points: dict[str, dict[int, float]]) -> list[list[str]]:
    """Exponents p of update ~ N^p, with 95% confidence, and how the law grows over the depths there are."""
    rows = [["method", "source", "layers", "slope", "95%", "R2", "growth by the law"]]
    for method in METHODS:
        for source, values in (("measured", points[method]), ("paper", PAPER[method])):
            if len(values) > 1:
                law, low, high = _law(values), min(values), max(values)
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
        theirs = PAPER["post_ln"].get(layers, np.nan) / PAPER["deepnorm"].get(layers, np.nan)
        laws = [10 ** float(_law(PAPER[method])(np.log10(layers))) for method in METHODS]
        rows.append([str(layers), number(mine), number(theirs), number(laws[0] / laws[1])])
    return rows
