"""What every format prints: headings, paragraphs and tables of plain text, each format's own to escape."""

from __future__ import annotations

from dataclasses import dataclass

from .entry import beside
from .result import Cell

DASH, MINUS = "–", "−"


@dataclass(frozen=True)
class Text:
    """A cell. kind: the state of its run, "number", "absent", "environment" or "". paper: the published value in it.

    marks: letters of footnotes; link: where the text leads, a relative path or an address.
    """

    text: str
    kind: str = ""
    paper: str = ""
    marks: tuple[str, ...] = ()
    link: str = ""


MISSING = Text(DASH, "absent")


@dataclass(frozen=True)
class Grid:
    """A table of cells. name: short, for addresses within a page. The first column says what a row is."""

    name: str
    title: str
    caption: str
    header: list[str]
    rows: list[list[Text]]

    @property
    def of_words(self) -> list[bool]:
        """Of each column: does it hold words, to be aligned left?"""
        words = {"", "absent", "environment"}
        return [all(row[place].kind in words for row in self.rows) for place in range(len(self.header))]


@dataclass(frozen=True)
class Document:
    """overview: the table in brief; grids: further ones. footnotes: letter -> what runs were trained with.

    commands, logs: name of a run -> how it was trained, where its log lies.
    """

    title: str
    source: str
    link: str
    banner: str
    warnings: list[str]
    overview: Grid
    grids: list[Grid]
    footnotes: dict[str, str]
    notes: list[str]
    commands: dict[str, str]
    logs: dict[str, str]


def numeral(value: object | None) -> Text:
    """A number as it is, or a text of one; a dash for None."""
    return Text(DASH if value is None else str(value), "number")


def number(value: float | None, digits: int) -> Text:
    """With so many decimals."""
    return numeral(None if value is None else f"{value:.{digits}f}")


def change(value: float | None, digits: int) -> Text:
    """With its sign, a minus as typographers have it."""
    return numeral(None if value is None else f"{value:+.{digits}f}".replace("-", MINUS))


def size(parameters: int | None) -> str:
    """As papers give it: 61M, 3.8B."""
    if parameters is None:
        return DASH
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.{0 if parameters >= 10 * unit else 1}f}{name}"
    return str(parameters)


def hours(cost: tuple[float, str] | None) -> Text:
    """With at most three decimals: 0.042 GPU-hours, 1250 GPU-hours."""
    if cost is None:
        return numeral(None)
    value, unit = cost
    return numeral(f"{value:.{3 if value < 0.1 else 2 if value < 10 else 0}f} {unit}-hours")


def published(cell: Cell, missing: str = DASH) -> str:
    """With the digits the paper gives."""
    return missing if cell.published is None else str(cell.published)


def interval(score: dict, metric: str, digits: int) -> Text:
    """A score with its 95% bootstrap interval, as "27.53 [26.90, 28.14]"."""
    value, mean, half = (beside(score, metric, key) for key in ("score", "mean", "ci"))
    if value is None or half is None:
        return number(value, digits)
    middle = value if mean is None else mean
    return numeral(f"{value:.{digits}f} [{middle - half:.{digits}f}, {middle + half:.{digits}f}]")
