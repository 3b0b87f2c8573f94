"""Tell text from pieces of words in what fairseq-generate printed.

Translations whose pieces were not joined, or joined twice, are refused; pieces of bytes, which fairseq leaves, are
joined here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ...errors import UserError
from .words import JOINED_BY_MOSES, mostly, written_without_blanks

WORD = "▁"  # begins a word of SentencePiece's
MARKS = (WORD, "@@")  # marks of pieces of words
LONG = 20  # characters of a word, which most words do not have
BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")  # pieces of SentencePiece models with byte fallback
NO_BYTE = re.compile("[\udc80-\udcff]")  # how Python's surrogateescape writes a byte that is no character


@dataclass
class Joined:
    """Counts of lines H-n that lost their blanks in D-n, where pieces were joined twice.

    with_blanks: lines H-n of several words, without pieces; lost: of them, those whose D-n lacks the blanks alone.
    """

    with_blanks: int = 0
    lost: int = 0

    def count(self, before: str, after: str) -> None:
        """Count a sentence: its H-n, which --remove-bpe has joined, and its D-n, which --bpe has joined after that."""
        if " " not in before or WORD in before:
            return
        self.with_blanks += 1
        if after == before.replace(" ", ""):
            self.lost += 1


def refuse_joined_pieces(file: Path, translations: list[str], joined: Joined) -> None:
    """Raise a UserError if most translations hold pieces of words, or lost their blanks when they were joined twice.

    In a few lines a mark of pieces may be text. Moses' detokeniser drops the blanks of Chinese and Japanese rightly.
    """
    for mark in MARKS:
        count = sum(mark in line for line in translations)
        if 2 * count > len(translations):
            raise UserError(
                f"{file}: {count:,} of {len(translations):,} translations hold pieces of words ({mark}); generate "
                "again with --remove-bpe, of SentencePiece --remove-bpe sentencepiece"
            )
    if 2 * joined.lost > joined.with_blanks and not mostly(JOINED_BY_MOSES, translations):
        raise UserError(
            f"{file}: {joined.lost:,} of {len(translations):,} translations lost their blanks between lines H-n and "
            "D-n, because --bpe and --remove-bpe both joined their pieces; generate again with one of the two"
        )


def notes(file: Path, translations: list[str]) -> list[str]:
    """Return a sentence if most translations are a single long word, so that BLEU cannot count words."""
    count = sum(" " not in line and len(line) > LONG for line in translations)
    if 2 * count <= len(translations) or written_without_blanks(translations):
        return []
    return [f"{file}: {count:,} of {len(translations):,} translations have no blank; were their pieces joined twice?"]


def with_bytes(lines: list[str]) -> int:
    """Count the lines that hold pieces of bytes, as <0xE7>."""
    return sum("<0x" in line and BYTES.search(line) is not None for line in lines)


def join_bytes(line: str) -> str:
    """Return a line with the characters that its pieces of bytes spell, U+FFFD for a byte of none, as SentencePiece."""
    return BYTES.sub(_characters, line) if "<0x" in line else line


def _characters(run: re.Match) -> str:
    """Return the characters that a run of pieces of bytes spells."""
    spelt = bytes.fromhex(run[0].replace("<0x", "").replace(">", ""))
    text = NO_BYTE.sub("\ufffd", spelt.decode("utf-8", "surrogateescape"))
    return text.replace("\n", " ")  # a sentence has one line
