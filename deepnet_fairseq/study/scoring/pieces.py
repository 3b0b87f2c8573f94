"""Tell text from pieces of words in what fairseq-generate printed.

A piece is an entry of a subword vocabulary, of SentencePiece or BPE. fairseq prints a translation as H-n, with pieces
joined by --remove-bpe, and as D-n, made of H-n by --bpe, which joins pieces too. Translations whose pieces were not
joined, or joined twice, are refused. Pieces of bytes, as <0xE7>, which fairseq leaves as they are, are joined here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ...errors import UserError
from ...wording import counted
from .words import JOINED_BY_MOSES, mostly, written_without_blanks

WORD = "▁"  # SentencePiece's mark of the beginning of a word
MARKS = (WORD, "@@")  # by which pieces of words are known; in BPE "trans@@ late" is one word
LONG = 20  # characters; hardly a word is longer
BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")  # pieces of SentencePiece models with byte fallback
NO_CHARACTER = re.compile("[\udc80-\udcff]")  # how Python's surrogateescape writes a byte that is no character


@dataclass
class Joined:
    """Counts of sentences whose pieces were joined twice, so that D-n lacks the blanks between words that H-n has.

    with_blanks: number of sentences whose H-n is text of several words, not pieces; lost: number of those among them
    whose D-n is H-n without its blanks.
    """

    with_blanks: int = 0
    lost: int = 0

    def count(self, before: str, after: str) -> None:
        """Count a sentence; before: its text in H-n, after: its text in D-n."""
        if " " not in before or WORD in before:  # a single word has no blanks to lose; --bpe rightly joins pieces
            return
        self.with_blanks += 1
        if after == before.replace(" ", ""):
            self.lost += 1


def refuse_joined_pieces(file: Path, translations: list[str], joined: Joined) -> None:
    """Raise a UserError if most translations hold pieces of words, or lost their blanks because they were joined twice.

    A few translations with a mark of pieces are let pass, since the text itself may have it. Chinese and Japanese
    without blanks are let pass too, since Moses' detokeniser rightly drops these. file: the output, for the message;
    joined: counts of its sentences.
    """
    for mark in MARKS:
        count = sum(mark in line for line in translations)
        if 2 * count > len(translations):
            raise UserError(
                file,
                f"pieces of words ({mark}) in {count:,} of {counted(len(translations), 'translation')}; generate "
                "again with --remove-bpe, of SentencePiece --remove-bpe sentencepiece",
            )
    if 2 * joined.lost > joined.with_blanks and not mostly(JOINED_BY_MOSES, translations):
        raise UserError(
            file,
            f"{joined.lost:,} of {counted(len(translations), 'translation')} lost their blanks between lines H-n and "
            "D-n, because --bpe and --remove-bpe both joined their pieces; generate again with one of the two",
        )


def notes(file: Path, translations: list[str]) -> list[str]:
    """Return a note, a list of one sentence, if most translations are a single long word; else [].

    BLEU then has no words to count. Text of scripts that are written without blanks is right as it is.
    """
    count = sum(" " not in line and len(line) > LONG for line in translations)
    if 2 * count <= len(translations) or written_without_blanks(translations):
        return []
    return [
        f"{file}: no blank in {count:,} of {counted(len(translations), 'translation')}; were their pieces joined twice?"
    ]


def count_with_bytes(lines: list[str]) -> int:
    """Count the lines that hold pieces of bytes, as <0xE7>."""
    return sum("<0x" in line and BYTES.search(line) is not None for line in lines)


def join_bytes(line: str) -> str:
    """Replace the pieces of bytes in a line by the characters of these UTF-8 bytes.

    A byte that belongs to no character becomes U+FFFD, as in SentencePiece.
    """
    return BYTES.sub(_characters, line) if "<0x" in line else line


def _characters(match: re.Match) -> str:
    """Return the text of successive pieces of bytes, "ç" for "<0xC3><0xA7>"; match: of the pattern BYTES."""
    utf8 = bytes.fromhex(match[0].replace("<0x", "").replace(">", ""))
    text = NO_CHARACTER.sub("\ufffd", utf8.decode("utf-8", "surrogateescape"))
    return text.replace("\n", " ")  # a sentence has one line
