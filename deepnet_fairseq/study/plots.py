"""Draw pictures of recorded numbers. Measured values are solid, a paper's dashed and hollow.

A figure is a Picture, whose panels hold all numbers that are drawn: `draw` writes it as PNG, PDF or SVG, and
`as_markdown` gives its numbers as Markdown.
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
# Ending of a file -> what matplotlib must not write into it, because it differs from day to day or by version.
METADATA: dict[str, Any] = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
CROSS: dict[str, Any] = {"fontsize": 15, "ha": "center", "va": "center_baseline", "annotation_clip": False}
WIDTH = 4.2  # of a panel, in inches
HEIGHT = 3.4
HEIGHT_OF_LEGEND = 0.4
WIDTH_OF_ENTRY = 2.1  # of one label in the legend
MOST_ROWS = 12  # of a panel's table, each for an x value


@dataclass(frozen=True)
class Style:
    """How a series looks: its name in legends and tables, its colour, and its marker (a letter of matplotlib)."""

    label: str
    colour: str
    marker: str


# The place in this list gives a method its colour and marker. The order is that of the pictures in results/ and must
# not change; methods that are not listed follow by name.
FIRST = (
    "deepnorm", "post_ln", "post_ln_init", "ds_init", "admin", "admin_torch", "branchnorm", "pre_ln", "normformer",
    "rezero", "r_fixup", "t_fixup", "dlcl", "sub_ln", "b2t", "complete_p", "gpas", "hybrid_norm", "keel", "ln_scaling",
    "mhc", "mix_ln", "peri_ln", "resi_dual", "siamese_norm",
)  # fmt: skip
COLOURS = ("#D55E00", "#000000", "#009E73", "#E69F00", "#0072B2", "#56B4E9", "#CC79A7", "#7F5B3A")  # Okabe and Ito's
MARKERS = "osD^v<>"  # 7, coprime with the 8 colours, so that all 56 pairs come before one repeats


def style_of(method: str) -> Style:
    """Return the style of a method, with its title as the label.

    method: a name in METHODS; any other name, as of a system that somebody else trained, is a label in grey.
    """
    if method not in METHODS:
        return Style(method, "#767676", "P")  # a filled plus, which is none of MARKERS
    others = sorted(METHODS.keys() - set(FIRST))
    return style_of_setting([*FIRST, *others].index(method), METHODS[method].title)


def style_of_setting(rank: int, label: str) -> Style:
    """Return the style number `rank`, counted from 0, with this label; numbers 0 to 55 differ in colour or marker."""
    return Style(label, COLOURS[rank % len(COLOURS)], MARKERS[rank % len(MARKERS)])


def magnitude(value: str) -> tuple[float, str]:
    """Return the sort key of a setting: the number that it begins with, and its text.

    "5e-4" is sorted by 5e-4, "512-2048-8" by 512, a text that begins with no number by 0.
    """
    match = re.match(r"\d+(\.\d+)?(e-?\d+)?", value)
    size = float(match.group()) if match else 0.0
    return size, value


@dataclass(frozen=True)
class Series:
    """One line of a panel.

    points: x -> y; paper: whether they are a paper's, not measured; failed: the x of runs that diverged or were stuck;
    band: x -> (lowest y, highest y), between which the panel is shaded; law: x -> y of a fitted line, which is then
    drawn in place of the line through the points.
    """

    style: Style
    points: Mapping[float, float]
    paper: bool = False
    failed: Iterable[float] = ()
    band: Mapping[float, tuple[float, float]] = field(default_factory=dict)
    law: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """Several Series on one pair of axes.

    x, y: labels of the axes; log: which axes are logarithmic, "x", "y", "xy" or "" for none; ticks: the x values that
    the x axis marks; () leaves the choice to matplotlib.
    """

    title: str
    x: str
    y: str
    series: list[Series]
    log: str = ""
    ticks: Sequence[float] = ()


@dataclass(frozen=True)
class Picture:
    """A figure: its heading, and its panels, row by row in `columns` columns.

    paper: the corpus and model of the paper's points, for the legend; "" if no point is a paper's. tables: further
    tables of its Markdown, lists of rows whose first is the header; notes: paragraphs below the tables.
    """

    heading: str
    panels: Sequence[Panel]
    paper: str = ""
    tables: Sequence[list[list[str]]] = ()
    notes: Sequence[str] = ()
    columns: int = 3


def draw(picture: Picture, path: Path) -> None:
    """Write the picture as PNG, PDF or SVG, by the path's ending; the same numbers give the same bytes.

    The file appears when it is complete; nobody sees it half-written.
    """
    from matplotlib import rc_context
    from PIL import Image

    # svg.hashsalt: ids that do not change from run to run; pdf.fonttype 42: TrueType fonts, which journals require
    with rc_context({"svg.hashsalt": "deepnet", "pdf.fonttype": 42}), whole(path) as part:
        _figure(picture).savefig(part, format=path.suffix[1:], dpi=110, metadata=METADATA[path.suffix])
        if path.suffix == ".png":  # a palette of 128 colours halves the file; lines and letters on white lose little
            Image.open(part).convert("RGB").quantize(128).save(part, format="png", optimize=True)


def _figure(picture: Picture) -> Any:
    """Return matplotlib's figure: the panels in rows, and below them one legend, with each label once."""
    from matplotlib.figure import Figure

    columns = min(picture.columns, len(picture.panels))
    rows = math.ceil(len(picture.panels) / columns)
    figure = Figure(figsize=(columns * WIDTH, rows * HEIGHT + HEIGHT_OF_LEGEND), layout="constrained")

    handles: dict[str, Any] = {}  # label -> the line that stands for it in the legend
    all_axes = figure.subplots(rows, columns, squeeze=False).flat
    for panel, axes in zip_longest(picture.panels, all_axes):
        axes.set_visible(panel is not None)  # the last row may have more axes than panels
        if panel:
            _draw_panel(panel, axes, handles)

    figure.legend(
        handles=list(handles.values()),
        loc="outside lower center",
        title=_legend_title(picture),
        ncols=max(2, int(columns * WIDTH / WIDTH_OF_ENTRY)),
        fontsize=8,
        title_fontsize=8,
        frameon=False,
    )
    return figure


def _legend_title(picture: Picture) -> str:
    """Return a text that explains dashed lines and crosses, if the picture has any; "" if it has neither."""
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
    """Draw all series of a panel.

    handles: label -> the line of matplotlib that stands for it in the legend; the labels of the panel are added. If a
    label has a measured series and a paper's, the line is that of the measured one.
    """
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

    # a logarithmic axis is marked with plain numbers, as 100, where matplotlib would write powers of ten
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
    """Draw points, band and law of a series; return matplotlib's line of its points, for the legend."""
    colour = series.style.colour
    look = PAPER if series.paper else MEASURED
    linestyle = "none" if series.law else look["linestyle"]  # the law is drawn in place of a line through the points

    x = list(series.points)
    y = list(series.points.values())
    shape = {"color": colour, "marker": series.style.marker, **look, "linestyle": linestyle}
    distance = max(1, len(x) // 8)  # from marker to marker, in points: a long line has about 8 markers
    (line,) = axes.plot(x, y, markevery=distance, label=series.style.label, **shape)

    if series.band:
        lowest, highest = zip(*series.band.values(), strict=True)
        axes.fill_between(list(series.band), lowest, highest, color=colour, alpha=0.2)
    if series.law:
        axes.plot(list(series.law), list(series.law.values()), look["linestyle"], color=colour, linewidth=1.2)
    return line


def _draw_failures(panel: Panel, rank: int, axes: Any) -> None:
    """Draw a cross at each x at which a run of panel.series[rank] failed.

    The cross stands on the series' own point if there is one at this x, else at an end of the y axis: at the top where
    y is a loss, at the bottom where it is BLEU or anything else. It stands to the right of the crosses of earlier
    series at the same x, which would otherwise be hidden.
    """
    series = panel.series[rank]
    for x in series.failed:
        if x in series.points:
            place = (x, series.points[x])
            units = "data"
        else:
            place = (x, 1.0 if "loss" in panel.y else 0.0)
            units = axes.get_xaxis_transform()  # x in data, y from 0 at the bottom to 1 at the top
        earlier = len([other for other in panel.series[:rank] if x in other.failed])  # crosses at the same x
        axes.annotate(
            "×",
            xy=place,
            xytext=(9 * earlier, 0),  # in points (1/72 inch) to the right
            xycoords=units,
            textcoords="offset points",
            color=series.style.colour,
            **CROSS,
        )


def as_markdown(picture: Picture) -> str:
    """Return the picture's numbers as Markdown: its heading, a table for each panel, its further tables and notes.

    Tables without rows are left out.
    """
    tables = [_numbers(panel) for panel in picture.panels]
    tables += picture.tables
    filled = [markdown(table) for table in tables if len(table) > 1]  # the first row is the header
    return "\n\n".join([picture.heading, *filled, *picture.notes]) + "\n"


def _numbers(panel: Panel) -> list[list[str]]:
    """Return the table of a panel: a header, and a row for each x with a cell "measured (paper)" for each label.

    At most MOST_ROWS of the measured x have a row. The x of the paper's series have rows too, unless they are more than
    MOST_ROWS.
    """
    measured_x = sorted(_x_values(panel, paper=False))
    shown = set(_evenly_spaced(measured_x))
    paper_x = _x_values(panel, paper=True)
    if len(paper_x) <= MOST_ROWS:
        shown |= paper_x

    labels = list(dict.fromkeys(series.style.label for series in panel.series))
    rows = [[f"{panel.title}: {panel.x}", *labels]]
    for x in sorted(shown):
        measured: dict[str, str] = {}  # label -> text of its value at x
        published: dict[str, str] = {}  # the same of the paper's series
        for series in panel.series:
            value = _value(series, x)
            if not value:
                continue
            if series.paper:
                published[series.style.label] = value
            else:
                measured[series.style.label] = value
        cells = [_cell(measured.get(label), published.get(label)) for label in labels]
        rows.append([f"{x:g}", *cells])
    return rows


def _x_values(panel: Panel, paper: bool) -> set[float]:
    """Return all x at which the paper's series, or the measured ones, have a value or a failure.

    paper: True for the paper's series.
    """
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
    """Return the text of a series at x: its point, its band, and "diverged" for a failure; "" if it has none of them.

    A band is "0.25 to 0.38"; behind a point it is in brackets, as "0.3 [0.25 to 0.38]".
    """
    parts = []
    if x in series.points:
        parts.append(f"{series.points[x]:g}" if series.paper else format_number(series.points[x]))
    if x in series.band:
        low, high = series.band[x]
        ends = f"{format_number(low)} to {format_number(high)}" if low != high else format_number(low)
        parts.append(f"[{ends}]" if parts else ends)
    if x in series.failed:
        parts.append("diverged")
    return " ".join(parts)


def _evenly_spaced(x_values: list[float]) -> list[float]:
    """Return at most MOST_ROWS of the values, at even distances in the list, the first and the last included."""
    if len(x_values) <= MOST_ROWS:
        return x_values
    last = len(x_values) - 1
    return [x_values[round(rank * last / (MOST_ROWS - 1))] for rank in range(MOST_ROWS)]


def format_number(value: float | None, digits: int = 3) -> str:
    """Format a number with `digits` significant digits, but its whole part in full: 1234.5 is "1234" with 3 digits.

    A number below 0.0001 is "1.2e-05". None, NaN and infinity become a dash.
    """
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
    """Return {x: mean of y over all pairs (x, y) with this x}, ordered by x: one point for runs of several seeds."""
    groups: dict[float, list[float]] = {}
    for x, y in pairs:
        groups.setdefault(x, []).append(y)
    return {x: sum(groups[x]) / len(groups[x]) for x in sorted(groups)}
