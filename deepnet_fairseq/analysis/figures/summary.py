"""Text beside a figure: numbers measured and read off the paper."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ...text_table import render
from .. import paper


def number(value: float | None, digits: int = 3) -> str:
    """Significant digits, the whole part in full; "-" where there is none."""
    if value is None or not math.isfinite(value):
        return "-"
    if abs(value) < 1e-4:
        return f"{value:.1e}" if value else "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}"


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
    gaps = list(missing)
    if gaps:
        parts.append(f"no run of: {'; '.join(gaps)}")
    parts.append(source)
    return "\n\n".join(parts) + "\n"


def means(pairs: Iterable[tuple[float, float]]) -> dict[float, float]:
    """x -> mean of its y, in the order of x: runs that differ in their seed alone become one point."""
    found: dict[float, list[float]] = {}
    for x, y in pairs:
        found.setdefault(x, []).append(y)
    return {x: sum(found[x]) / len(found[x]) for x in sorted(found)}
