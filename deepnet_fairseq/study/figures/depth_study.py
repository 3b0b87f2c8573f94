"""The depth study's pictures: loss by depth at each method's best rate, loss by rate at each depth.

Rates are drawn of CORE, losses by depth of all that were trained at two depths, and trainings as long as those of most
cells, longer ones in a picture of their own. A vertical line is the range of seeds, a cross at the top a training that
diverged or was stuck.
"""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..depth_study import leaders, outcome
from ..depth_tables import CORE, bests, followed, grids, rate_of
from ..runs import RecordedRun
from ..style import style_of
from .sheet import Sheet

DEPTH = "layers N of an N-N model"
HOLLOW = {"linestyle": "none", "markerfacecolor": "none", "markersize": 4.5}
LOSS = "held-out loss (bits per token)"


def loss_by_depth(runs: list[RecordedRun], path: Path) -> None:
    """One panel: N -> loss at each method's own best rate, mean and range of seeds."""
    sheet, methods = Sheet(1, 1, "", size=(5.2, 3.6)), followed(runs)
    found = bests(run for run in grids(runs) if run.method in methods)
    depths = sorted({place.layers for _, place in found})
    for method in methods:
        own = {place.layers: best for (name, place), best in found.items() if name == method}
        style = style_of(method)
        points = {layers: best.loss for layers, best in own.items() if best.losses}
        sheet.points(0, points, [layers for layers, best in own.items() if not best.losses], style, top=True)
        for layers, best in own.items():
            _range(sheet, 0, layers, best.losses, style.colour)
    sheet.label(0, "", DEPTH, LOSS)
    depths_axis(sheet, 0, depths)
    _room(sheet, 1)
    _save(sheet, path)


def loss_by_length(runs: list[RecordedRun], path: Path) -> None:
    """A panel a depth with longer trainings: update -> held-out loss on the way; hollow: short ones' end."""
    usual = {run.facts["updates"] for run in grids(runs)}
    short = {(method, place.layers): best for (method, place), best in bests(grids(runs)).items()}
    longer = [run for run in leaders(runs) if run.facts["updates"] > max(usual)]
    depths = sorted({run.layers for run in longer})
    sheet = Sheet(max(len(depths), 1), 1, "", size=(3.6, 3.4) if len(depths) > 1 else (5.2, 3.6))
    for panel, layers in enumerate(depths):
        sheet.label(panel, f"{layers}L-{layers}L", "update", "" if panel else LOSS)
        here = [run for run in longer if run.layers == layers]
        ranks = [*CORE, *sorted({run.method for run in here} - {*CORE})]
        for run in sorted(here, key=lambda run: ranks.index(run.method)):
            style, best = style_of(run.method), short.get((run.method, layers))
            sheet.curve(panel, run.validation.updates, run.validation.losses, style)
            if best and best.losses:
                sheet.panels[panel].plot([max(usual)], [best.loss], color=style.colour, marker=style.marker, **HOLLOW)
    for axes in sheet.panels:
        axes.sharey(sheet.panels[0])
        axes.autoscale(axis="y")
    sheet.kinds["a training that ends there"] = HOLLOW | {"marker": "o"}
    _save(sheet, path)


def loss_by_rate(runs: list[RecordedRun], path: Path) -> None:
    """A panel a depth at which two rates or more were tried: rate -> loss, mean and range of seeds."""
    runs = [run for run in grids(runs) if run.method in CORE]
    tried: dict[int, set[float]] = {}
    for run in sorted(runs, key=lambda run: run.layers):
        tried.setdefault(run.layers, set()).add(rate_of(run))
    depths = [layers for layers, rates in tried.items() if len(rates) > 1] or list(tried)
    columns = min(2, len(depths))
    rows = math.ceil(len(depths) / columns)
    sheet = Sheet(columns, rows, "", size=(4.2, 2.9 if rows > 1 else 3.6) if columns > 1 else (5.2, 3.6))
    for panel, layers in enumerate(depths):
        sheet.label(panel, f"{layers}L-{layers}L", "peak learning rate", LOSS if panel % columns == 0 else "")
        for method in CORE:
            style, found = style_of(method), _by_rate([r for r in runs if (r.method, r.layers) == (method, layers)])
            points = {rate: sum(losses) / len(losses) for rate, losses in found.items() if losses}
            sheet.points(panel, points, [rate for rate, losses in found.items() if not losses], style, top=True)
            for rate, losses in found.items():
                _range(sheet, panel, rate, losses, style.colour)
        rates_axis(sheet.panels[panel].xaxis, set().union(*tried.values()))
    _room(sheet, len(depths))
    _save(sheet, path)


def rates_axis(axis, rates: set[float]) -> None:
    """Logarithmic, with a tick at every second of the rates, as "5e-4", and room at both ends."""
    (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")
    ticks = sorted(rates)
    axis.set_major_locator(FixedLocator(ticks[:: 1 if len(ticks) < 5 else 2]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:.2g}"))
    (axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim)(ticks[0] / 1.4, ticks[-1] * 1.4)


def _room(sheet: Sheet, count: int) -> None:
    """For crosses above the curves of the first panels; the others are hidden."""
    for axes in sheet.panels[:count]:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.3 * (high - low))
    for axes in sheet.panels[count:]:
        axes.set_visible(False)


def _by_rate(runs: list[RecordedRun]) -> dict[float, list[float]]:
    """Rate -> finite losses of its seeds, from the lowest rate on; empty where all failed."""
    found: dict[float, list[float]] = {}
    for run in sorted(runs, key=rate_of):
        found.setdefault(rate_of(run), []).extend([outcome(run)] if math.isfinite(outcome(run)) else [])
    return found


def _range(sheet: Sheet, panel: int, x: float, losses, colour: str) -> None:
    if len(losses) > 1:
        sheet.panels[panel].vlines(x, min(losses), max(losses), color=colour, linewidth=3, alpha=0.45)


def depths_axis(sheet: Sheet, panel: int, depths: list[int]) -> None:
    """A logarithmic axis with a tick at each depth that there is."""
    axes = sheet.panels[panel]
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(depths))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda layers, _: f"{layers:g}"))


def _save(sheet: Sheet, path: Path) -> None:
    if "diverged" in sheet.kinds:
        sheet.kinds["diverged or stuck"] = sheet.kinds.pop("diverged")
    sheet.save(path)
