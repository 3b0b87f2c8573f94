"""What every format prints: headings, paragraphs and tables of plain text, each format's own to escape."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Text:
    """A cell. kind: the state of its run, "number", or "". paper: the published value that shares the cell.

    marks: letters of footnotes; link: where the text leads, a relative path or an address.
    """

    text: str
    kind: str = ""
    paper: str = ""
    marks: tuple[str, ...] = ()
    link: str = ""


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
    notes: list[str] = field(default_factory=list)
    commands: dict[str, str] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
