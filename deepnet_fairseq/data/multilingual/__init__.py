"""Many languages, one vocabulary: parallel text of many pairs -> binarised data for one multilingual model.

Here: the text of one language pair, read as a stream, for a corpus may be larger than the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import UserError
from .. import steps

Sentences = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class PairText:
    """A language pair's text, which nothing holds in memory.

    langs: the two languages; subsets: "train", "valid", ... -> a function that reads the pairs from the start; state:
    whatever changes when the text does (sizes and times of its files, checksums), for the record of a step; bound: a
    quick upper bound of the training pairs, where reading them takes long; finish: called when all of it is binarised.
    """

    langs: tuple[str, str]
    subsets: dict[str, Callable[[], Sentences]]
    state: dict
    bound: Callable[[], int] | None = None
    finish: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        """As "de-en"."""
        return "-".join(self.langs)

    @property
    def directions(self) -> tuple[str, str]:
        """As ("de-en", "en-de")."""
        return self.name, "-".join(reversed(self.langs))


def parse_pair(pair: str) -> tuple[str, str]:
    """ "de-en" -> ("de", "en"); UserError for anything fairseq would misread."""
    langs = tuple(pair.split("-"))
    if len(langs) != 2 or langs[0] == langs[1] or not all(lang.replace("_", "").isalnum() for lang in langs):
        raise UserError(f"--pairs {pair}: no pair of languages; write two codes with a hyphen between, de-en")
    return langs


def file_state(path: Path) -> list[int]:
    """Size in bytes and time of change in ns; UserError if there is no such file."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    return steps.file_state(path)
