"""What is asked of Moses' tools, whoever does it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ..cleaning import Limits


@dataclass(frozen=True)
class Chain:
    """What is done to a line, in this order; tokenising, with special characters escaped, always is.

    normalise: normalize-punctuation.perl, then remove-non-printing-char.perl; aggressive: tokenizer.perl -a, which
    splits at hyphens; lowercase: lowercase.perl.
    """

    normalise: bool = False
    aggressive: bool = False
    lowercase: bool = False

    def __str__(self) -> str:
        normalise = "normalise punctuation, remove what is not printed, " if self.normalise else ""
        aggressive = ", splitting at hyphens" if self.aggressive else ""
        return f"{normalise}tokenise{aggressive}{', lower-case' if self.lowercase else ''}"

    def as_json(self) -> dict[str, bool]:
        """What the record of a step keeps."""
        return asdict(self)


class Moses(ABC):
    """Tokenises and cleans, as the scripts of https://github.com/moses-smt/mosesdecoder do."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Tool -> version."""

    @abstractmethod
    def process(self, lines: Iterable[str], lang: str, chain: Chain, workers: int, label: str) -> Iterator[str]:
        """One line for each of `lines`, which are in `lang` ("de"); label: of the progress bar.

        UserError if a tool fails or loses lines.
        """

    @abstractmethod
    def clean(self, langs: tuple[str, str], source: Path, dest: Path, limits: Limits) -> None:
        """DEST.LANG from SOURCE.LANG, for both languages: the pairs within the limits."""
