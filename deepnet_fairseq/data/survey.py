"""Read a text once before it is prepared, to find mistakes in it and to count what later readings of it must know.

A text has rows and columns. A row is a tuple of lines, one for each column: a sentence and its translation, or one line
of plain text. So parallel text has two columns, its languages, and plain text has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
from tqdm import tqdm

from .lines import Letters, sized_chunks

CODES = 0x110000  # number of Unicode's code points
AnySurvey = TypeVar("AnySurvey", bound="Survey")  # Survey or a subclass of it


class Survey:
    """Counts of what is in a text. Those of its parts, made in several processes, can be merged.

    A subclass counts another thing by extending `add` and `merge`.

    names: of the columns, for warnings
    rows: number of rows
    size: bytes of all lines of all columns in UTF-8, each with its line end
    characters: set of all characters that occur, the line end among them
    letters: for each column, numbers of lines with composed letters (é is one character) and with decomposed ones
    """

    def __init__(self, names: Sequence[str]):
        self.names = names
        self.rows = 0
        self.size = 0
        self.characters: set[str] = set()
        self.letters = Letters(names)

    def add(self, rows: list[tuple[str, ...]]) -> None:
        """Count some rows of text, at least one."""
        self.rows += len(rows)
        self.letters.add(rows)
        text = "\n".join(map("\n".join, rows)) + "\n"  # all lines, of whatever column, each with its end
        self.size += len(text.encode())
        self.characters |= characters(text)

    def merge(self, other: Survey) -> None:
        """Add what was counted in another part of the text."""
        self.rows += other.rows
        self.size += other.size
        self.characters |= other.characters
        self.letters.merge(other.letters)


def characters(text: str) -> set[str]:
    """Return the characters of a text; ten times as fast as set(text), because no Python object is made for each."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)  # one number for each character
    seen = np.zeros(CODES, bool)
    seen[codes] = True
    return set(map(chr, np.flatnonzero(seen)))


def survey(
    total: AnySurvey, rows: Iterable[tuple[str, ...]], workers: int, label: str, size: int | None = None
) -> AnySurvey:
    """Count what is in all rows of a text, and add it to the survey `total`; return `total`.

    workers: number of processes
    label: name of the text on the progress bar
    size: bytes of the text, from which the bar estimates the time left; None if unknown
    """

    def survey_chunk(chunk: list[tuple[str, ...]]) -> AnySurvey:
        """Return a new survey, of the class of `total`, of some thousand rows; a process makes it."""
        part = type(total)(total.names)
        part.add(chunk)
        return part

    with tqdm(desc=f"reading {label}", total=size, unit="B", unit_scale=True, disable=None) as bar:
        for _, part in sized_chunks(survey_chunk, rows, workers):
            total.merge(part)
            bar.update(part.size)
    return total
