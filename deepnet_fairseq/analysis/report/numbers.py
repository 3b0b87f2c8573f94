"""Numbers as cells print them; a dash where there is none."""

from __future__ import annotations

from .cell import Cell
from .document import Text
from .entry import beside

DASH, MINUS = "–", "−"
MISSING = Text(DASH, "absent")


def number(value: float | None, digits: int) -> str:
    """With so many decimals."""
    return DASH if value is None else f"{value:.{digits}f}"


def change(value: float | None, digits: int) -> str:
    """With its sign, a minus as typographers have it."""
    return DASH if value is None else f"{value:+.{digits}f}".replace("-", MINUS)


def whole_number(value: int | None) -> str:
    """Without thousands' separators."""
    return DASH if value is None else f"{value}"


def size(parameters: int | None) -> str:
    """As papers give it: 61M, 3.8B."""
    if parameters is None:
        return DASH
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.{0 if parameters >= 10 * unit else 1}f}{name}"
    return str(parameters)


def hours(cost: tuple[float, str] | None) -> str:
    """With at most three decimals: 0.042 GPU-hours, 1250 GPU-hours."""
    if cost is None:
        return DASH
    value, unit = cost
    return f"{value:.{3 if value < 0.1 else 2 if value < 10 else 0}f} {unit}-hours"


def published(cell: Cell, missing: str = DASH) -> str:
    """With the digits the paper gives."""
    return missing if cell.published is None else str(cell.published)


def interval(score: dict, metric: str, digits: int) -> str:
    """A score with its 95% bootstrap interval, as "27.53 [26.90, 28.14]"."""
    value, mean, half = (beside(score, metric, key) for key in ("score", "mean", "ci"))
    if value is None:
        return DASH
    if half is None:
        return number(value, digits)
    middle = value if mean is None else mean
    return f"{value:.{digits}f} [{middle - half:.{digits}f}, {middle + half:.{digits}f}]"
