"""Draw pictures of recorded numbers. Measured values are solid, a paper's dashed and hollow.

A figure is a Picture, whose panels hold all numbers that are drawn: `draw` writes it as PNG, `text` as Markdown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..core.methods import METHODS
from ..files import whole
from ..text_table import markdown

MEASURED = {"linestyle": "-", "linewidth": 1.6, "markersize": 4.5}
PAPER = {"linestyle": "--", "linewidth": 1.0, "markersize": 4.5, "markerfacecolor": "none", "alpha": 0.75}
METADATA: dict[str, Any] = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
CROSS: dict[str, Any] = {"fontsize": 15, "ha": "center", "va": "center_baseline", "annotation_clip": False}
WIDTH = 4.2  # of a panel, in inches
ROWS = 12  # x values of a panel that its table shows, at most


@dataclass(frozen=True)
class Style:
    """Name in legends and tables, colour, and marker (a letter of matplotlib)."""

    label: str
    colour: str
    marker: str


# Methods in the order of their colours and markers, which are those of the recorded pictures; others follow by name.
FIRST = (
    "deepnorm", "post_ln", "post_ln_init", "ds_init", "admin", "admin_torch", "branchnorm", "pre_ln", "normformer",
    "rezero", "r_fixup", "t_fixup", "dlcl", "sub_ln", "b2t", "complete_p", "gpas", "hybrid_norm", "keel", "ln_scaling",
    "mhc", "mix_ln", "peri_ln", "resi_dual", "siamese_norm",
)  # fmt: skip
COLOURS = ("#D55E00", "#000000", "#009E73", "#E69F00", "#0072B2", "#56B4E9", "#CC79A7", "#7F5B3A")  # Okabe and Ito's
MARKERS = "osD^v<>"  # their number is coprime with the colours'


def style_of(method: str) -> Style:
    """Return the style of a method, with its title; what is no method is grey."""
    if method not in METHODS:
        return Style(method, "#767676", "P")
    others = sorted(METHODS.keys() - set(FIRST))
    return style_of_setting([*FIRST, *others].index(method), METHODS[method].title)


def style_of_setting(rank: int, label: str) -> Style:
    """Return the style of the rank-th setting of one hyper-parameter, from 0; styles repeat after 56."""
    return Style(label, COLOURS[rank % len(COLOURS)], MARKERS[rank % len(MARKERS)])


def magnitude(value: str) -> tuple[float, str]:
    """Return the sort key of a setting: 5e-4 of "5e-4", 512 of "512-2048-8"; then the setting itself."""
    match = re.match(r"\d+(\.\d+)?(e-?\d+)?", value)
    size = float(match.group()) if match else 0.0
    return size, value


@dataclass(frozen=True)
class Series:
    """Line of a panel.

    points: x -> y; paper: they are a paper's, not measured; failed: x of runs that diverged; band: x -> lowest and
    highest, shaded; law: x -> y of a fitted line, drawn in place of the line through the points.
    """

    style: Style
    points: Mapping[float, float]
    paper: bool = False
    failed: Iterable[float] = ()
    band: Mapping[float, tuple[float, float]] = field(default_factory=dict)
    law: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """Panel: several Series on one pair of axes.

    x, y: labels of the axes; log: logarithmic axes, "x", "y" or "xy"; ticks: the only ones of the x axis.
    """

    title: str
    x: str
    y: str
    series: list[Series]
    log: str = ""
    ticks: Sequence[float] = ()


@dataclass(frozen=True)
class Picture:
    """Figure with its panels, in so many columns.

    paper: setting of the paper's points, "" without any; tables, notes: further parts of its text.
    """

    heading: str
    panels: Sequence[Panel]
    paper: str = ""
    tables: Sequence[list[list[str]]] = ()
    notes: Sequence[str] = ()
    columns: int = 3


def draw(picture: Picture, path: Path) -> None:
    """Write a PNG, PDF or SVG, by the path's ending; the same numbers give the same bytes. The file is whole or absent.

    A PDF embeds fonts as text, as journals require.
    """
    from matplotlib import rc_context
    from PIL import Image

    with rc_context({"svg.hashsalt": "deepnet", "pdf.fonttype": 42}), whole(path) as part:
        _figure(picture).savefig(part, format=path.suffix[1:], dpi=110, metadata=METADATA[path.suffix])
        if path.suffix == ".png":  # a palette halves the file; lines and letters on white lose little
            Image.open(part).convert("RGB").quantize(128).save(part, format="png", optimize=True)


def _figure(picture: Picture) -> Any:
    """Return matplotlib's figure: the panels in rows, and one legend of all their labels below them."""
    from matplotlib.figure import Figure

    columns = min(picture.columns, len(picture.panels))
    rows = math.ceil(len(picture.panels) / columns)
    figure = Figure(figsize=(columns * WIDTH, rows * 3.4 + 0.4), layout="constrained")

    handles: dict[str, Any] = {}
    for panel, axes in zip_longest(picture.panels, figure.subplots(rows, columns, squeeze=False).flat):
        axes.set_visible(panel is not None)  # the last row may have places to spare
        if panel:
            _draw_panel(panel, axes, handles)

    figure.legend(
        handles=list(handles.values()),
        loc="outside lower center",
        title=_legend_title(picture),
        ncols=max(2, int(columns * WIDTH / 2.1)),
        fontsize=8,
        title_fontsize=8,
        frameon=False,
    )
    return figure


def _legend_title(picture: Picture) -> str:
    """Explain the kinds of lines and marks that the picture has."""
    kinds = []
    if picture.paper:
        kinds.append("solid: measured")
        kinds.append(f"dashed, hollow: paper ({picture.paper})")
    for panel in picture.panels:
        if any(series.failed for series in panel.series):
            kinds.append("x: diverged or stuck")
            break
    return "; ".join(kinds)


def _draw_panel(panel: Panel, axes: Any, handles: dict[str, Any]) -> None:
    """Draw all series, and add each label's entry to the legend's `handles`, the measured one if there are both."""
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_title(panel.title, fontsize=10)
    axes.set(xlabel=panel.x, ylabel=panel.y)

    for rank, series in enumerate(panel.series):
        line = _draw_series(series, axes)
        label = series.style.label
        if not series.paper or label not in handles:
            handles[label] = line
        _draw_failures(panel, rank, axes)

    if "x" in panel.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(ScalarFormatter())
    if "y" in panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(ScalarFormatter())

    if panel.ticks:
        axes.set_xticks(panel.ticks)
        axes.xaxis.minorticks_off()
    elif "x" not in panel.log:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))


def _draw_series(series: Series, axes: Any) -> Any:
    """Draw points, band and law of a series; return the line of its points, for the legend."""
    colour = series.style.colour
    look = PAPER if series.paper else MEASURED
    joined = "none" if series.law else look["linestyle"]  # the law is drawn in place of a line through the points

    x = list(series.points)
    y = list(series.points.values())
    shape = {"color": colour, "marker": series.style.marker, **look, "linestyle": joined}
    (line,) = axes.plot(x, y, markevery=max(1, len(x) // 8), label=series.style.label, **shape)

    if series.band:
        lowest, highest = zip(*series.band.values(), strict=True)
        axes.fill_between(list(series.band), lowest, highest, color=colour, alpha=0.2)
    if series.law:
        axes.plot(list(series.law), list(series.law.values()), look["linestyle"], color=colour, linewidth=1.2)
    return line


def _draw_failures(panel: Panel, rank: int, axes: Any) -> None:
    """Draw a cross where a run of the rank-th series failed, beside those of the series before it.

    It stands on the series' own line if that reaches so far, else at the bad end of the y axis: a high loss, but a low
    BLEU.
    """
    series = panel.series[rank]
    for x in series.failed:
        if x in series.points:
            end = (x, series.points[x])
            units = "data"
        else:
            end = (x, 1.0 if "loss" in panel.y else 0.0)
            units = axes.get_xaxis_transform()  # x in data, y from 0 at the bottom to 1 at the top
        crosses = len([other for other in panel.series[:rank] if x in other.failed])  # that stand there already
        axes.annotate(
            "×",
            xy=end,
            xytext=(9 * crosses, 0),
            xycoords=units,
            textcoords="offset points",
            color=series.style.colour,
            **CROSS,
        )


def as_markdown(picture: Picture) -> str:
    """Return the picture's numbers as Markdown: its heading, a table for each panel, its further tables and notes."""
    tables = [_numbers(panel) for panel in picture.panels]
    tables += picture.tables
    filled = [markdown(table) for table in tables if len(table) > 1]  # the first row is the header
    return "\n\n".join([picture.heading, *filled, *picture.notes]) + "\n"


def _numbers(panel: Panel) -> list[list[str]]:
    """Return a header, and a row for each x with a column for each label: measured (paper).

    There are at most ROWS measured x; the paper's have rows of their own if they are as few.
    """
    places = set(_some(sorted(_x_values(panel, paper=False))))
    paper_places = _x_values(panel, paper=True)
    if len(paper_places) <= ROWS:
        places |= paper_places

    labels = list(dict.fromkeys(series.style.label for series in panel.series))
    rows = [[f"{panel.title}: {panel.x}", *labels]]
    for x in sorted(places):
        measured: dict[str, str] = {}
        published: dict[str, str] = {}
        for series in panel.series:
            value = _value(series, x)
            if not value:
                continue
            if series.paper:
                published[series.style.label] = value
            else:
                measured[series.style.label] = value
        rows.append([f"{x:g}", *(_cell(measured.get(label), published.get(label)) for label in labels)])
    return rows


def _x_values(panel: Panel, paper: bool) -> set[float]:
    """Return all x at which the paper's series have a value or a failure, or else the measured series."""
    x_values: set[float] = set()
    for series in panel.series:
        if series.paper == paper:
            x_values.update(series.points, series.failed, series.band)
    return x_values


def _cell(measured: str | None, published: str | None) -> str:
    """Return "measured (published)"; a dash if nothing was measured, no parentheses if nothing was published."""
    cell = measured or "–"
    if published:
        cell += f" ({published})"
    return cell


def _value(series: Series, x: float) -> str:
    """Return what a series has at x: its point, its band in brackets, "diverged"; "" if nothing."""
    parts = []
    if x in series.points:
        parts.append(f"{series.points[x]:g}" if series.paper else number(series.points[x]))
    if x in series.band:
        low, high = series.band[x]
        ends = f"{number(low)} to {number(high)}" if low != high else number(low)
        parts.append(f"[{ends}]" if parts else ends)
    if x in series.failed:
        parts.append("diverged")
    return " ".join(parts)


def _some(places: list[float]) -> list[float]:
    """Return at most ROWS places at even distances, the first and the last included."""
    if len(places) <= ROWS:
        return places
    return [places[round(rank * (len(places) - 1) / (ROWS - 1))] for rank in range(ROWS)]


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with so many significant digits, its whole part in full; a dash for None, NaN and infinity."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.1e}"
    exponent = math.floor(math.log10(abs(value)))
    decimals = max(0, digits - 1 - exponent)
    return f"{value:.{decimals}f}"


def means(pairs: Iterable[tuple[float, float]]) -> dict[float, float]:
    """Return x -> mean of its y, ordered by x, so that runs that differ in their seed alone become one point."""
    groups: dict[float, list[float]] = {}
    for x, y in pairs:
        groups.setdefault(x, []).append(y)
    return {x: sum(groups[x]) / len(groups[x]) for x in sorted(groups)}
