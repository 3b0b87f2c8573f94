"""Pictures of several panels, what is measured solid, what is the paper's dashed and hollow; and the text beside."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ...files import whole
from ...text_table import render
from .. import paper
from ..runs import RecordedRun
from ..style import PLAIN, Style

PAPER = {"linestyle": "--", "markerfacecolor": "none", "linewidth": 1.0, "markersize": 4.5, "alpha": 0.75}
MEASURED = {"linestyle": "-", "linewidth": 1.6, "markersize": 4.5}
DIVERGED = {"linestyle": "none", "marker": "x", "markersize": 7, "markeredgewidth": 1.8}
SVG = {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans", "Verdana"]}
BELOW = {"bbox_to_anchor": (0.5, -0.15), "ncols": 3, "fontsize": 8, "frameon": False}
Names = dict[str, Style]  # in the order of the legend


class Sheet:
    """Panels in rows; every curve enters a legend below its panel, or below all panels where `shared`.

    Panels go by their number from 0, row by row. paper: setting of the paper's points, for the legend. size: width and
    height of a panel in inches.
    """

    def __init__(self, columns: int, rows: int, paper: str, size: tuple[float, float] = (4.0, 3.2), shared=True):
        self.figure = Figure(figsize=(columns * size[0], rows * size[1]), layout="constrained")
        self.panels: list[Axes] = list(self.figure.subplots(rows, columns, squeeze=False).flat)
        self.shared, self.paper_setting = shared, paper
        self.names: dict[Axes, Names] = {axes: {} for axes in self.panels}
        self.solid: set[str] = set()  # labels of what was measured
        self.from_zero: list[Axes] = []
        self.kinds: dict[str, dict] = {}
        self.failed: dict[tuple[Axes, float], int] = {}
        for axes in self.panels:
            axes.grid(alpha=0.25, linewidth=0.6)

    def curve(self, panel: int, x, y, style: Style, **options) -> None:
        """Measured points, joined. NaN leaves a gap."""
        self._plot(panel, x, y, style, None, MEASURED | options)
        self.solid.add(style.label)
        self.kinds["measured"] = MEASURED | {"marker": "o"}

    def paper(self, panel: int, x, y, style: Style, axes: Axes | None = None, **options) -> None:
        """The paper's points, joined; `axes` if another axis than the panel's own carries x."""
        self._plot(panel, x, y, style, axes, PAPER | options)
        self.kinds[f"paper ({self.paper_setting})"] = PAPER | {"marker": "o"}

    def points(self, panel: int, points: dict, failed: Iterable[float], style: Style, top=False, **options) -> None:
        """Measured x -> y, if there is any, and a cross for each x that failed; top: as for diverged."""
        if points:
            self.curve(panel, list(points), list(points.values()), style, **options)
        for x in sorted(failed):
            self.diverged(panel, x, style, top)

    def diverged(self, panel: int, x: float, style: Style, top: bool = False) -> None:
        """A cross at the panel's bottom, above those that are there already, or at its top, below them."""
        axes = self.panels[panel]
        rank = self.failed[axes, x] = self.failed.get((axes, x), -1) + 1
        height = 0.03 + 0.05 * rank
        axes.plot(
            [x], [1 - height if top else height], color=style.colour, transform=axes.get_xaxis_transform(), **DIVERGED
        )
        self.names[axes][style.label] = style
        self.solid.add(style.label)
        self.kinds["diverged"] = DIVERGED

    def validation(self, panel: int, run: RecordedRun, x: list[int], style: Style) -> str:
        """The validation losses of a run over x; the last as text, which says if the run diverged."""
        self.curve(panel, x, run.validation.losses, style, markersize=2.5)
        if run.diverged:
            self.diverged(panel, x[-1] if x else 0, style)
        return number(run.validation.final) + (" (diverged)" if run.diverged else "")

    def label(self, panel: int, title: str, x: str, y: str) -> None:
        """Title and axes; x counts layers or updates."""
        axes = self.panels[panel]
        axes.set_title(title, fontsize=10)
        axes.set(xlabel=x, ylabel=y)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))

    def paper_axis(self, panel: int, label: str) -> Axes:
        """An x axis on top of the panel, for the paper's points alone."""
        axes = self.panels[panel].twiny()
        self.from_zero += [axes, self.panels[panel]]
        axes.set_xlabel(label, fontsize=9)
        return axes

    def save(self, path: Path, dpi: int = 110) -> None:
        """Writes the PNG, or the SVG if `path` ends so, whole, without version or date: same points, same bytes.

        An SVG's letters are text in the reader's font; its background is white, so that black lines show on any page.
        """
        for axes in self.from_zero:
            axes.set_xlim(left=0)
        kinds = sorted(self.kinds) if len(self.kinds) > 1 else ()
        below = [Line2D([], [], color=PLAIN, label=kind, **self.kinds[kind]) for kind in kinds]
        if self.shared:
            names = {label: style for found in self.names.values() for label, style in found.items()}
            below = [*map(self._handle, names.values()), *below]
        else:
            for axes, names in self.names.items():
                axes.legend(handles=list(map(self._handle, names.values())), loc="upper center", **BELOW)
        columns = min(len(below), int(self.figure.get_figwidth() / 2.6))
        self.figure.legend(handles=below, loc="outside lower center", ncols=columns, fontsize=8.5)
        svg = path.suffix == ".svg"
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None} if svg else {"Software": None}
        with whole(path) as part, rc_context(SVG | {"svg.hashsalt": path.stem}):
            self.figure.savefig(part, format="svg" if svg else "png", dpi=dpi, metadata=metadata)

    def _plot(self, panel: int, x, y, style: Style, axes: Axes | None, options: dict) -> None:
        own = self.panels[panel]
        (axes or own).plot(x, y, **({"color": style.colour, "marker": style.marker} | options))
        self.names[own][style.label] = style

    def _handle(self, style: Style) -> Line2D:
        look = MEASURED if style.label in self.solid else PAPER
        return Line2D([], [], color=style.colour, marker=style.marker, label=style.label, **look)


def models(runs: Iterable[RecordedRun]) -> str:
    """The depths there are, as "12L-12L, 18L-18L"."""
    return ", ".join(sorted({run.depth for run in runs})) or "no run"


def number(value: float | None, digits: int = 3) -> str:
    """Significant digits, the whole part in full; "-" where there is none."""
    if value is None or not math.isfinite(value):
        return "-"
    if abs(value) < 1e-4:
        return f"{value:.1e}" if value else "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def read_off(value: float | None) -> str:
    """A point of the paper, with the digits it was read to."""
    return "-" if value is None else f"{value:g}"


def summary(figure: int, title: str, tables: Iterable[list[list[str]]], missing: Iterable[str] = ()) -> str:
    """Title, tables, what is not there, and where the numbers of DeepNet's Figure `figure` come from."""
    source = f"paper: {paper.SETTING[figure]}; read off its figure, {paper.ERROR[figure]}"
    return page(f"Figure {figure}: {title}", tables, missing, source)


def page(heading: str, tables: Iterable[list[list[str]]], missing: Iterable[str], source: str) -> str:
    """The same for any paper's figure; source: where its published numbers are from."""
    parts = [heading, *(render(rows) for rows in tables if len(rows) > 1)]
    gaps = "; ".join(missing)
    return "\n\n".join([*parts, *([f"no run of: {gaps}"] if gaps else []), source]) + "\n"


def means(pairs: Iterable[tuple[float, float]]) -> dict[float, float]:
    """x -> mean of its y, in the order of x: runs that differ in their seed alone become one point."""
    found: dict[float, list[float]] = {}
    for x, y in pairs:
        found.setdefault(x, []).append(y)
    return {x: sum(found[x]) / len(found[x]) for x in sorted(found)}
