"""The form of a training text, and how a line of another form is brought to it.

One text can be written in several ways that read alike: é as one character (Unicode's NFC) or as e and an accent
(NFD), letters in full or half width, straight or curly quotes. A model knows the way of its training text, and takes
the others for unknown characters. `deepnet prepare text` counts what its training text has and records it in
text_form.json; of data without that file the dictionary's pieces tell. A line is changed only where that loses nothing.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from sys import maxunicode
from unicodedata import decomposition, is_normalized, normalize

import numpy as np

from ..errors import UserError
from ..files import WRONG_VALUES, read_object
from .lines import APART, CHUNK
from .steps import write_json

NAME = "text_form.json"
MEND = "prepare the data again, or remove the file: then the dictionary tells the form"
STRAY = 0.01  # share of lines (or pieces) in another form that a consistent text may have

_TO_APART = str.maketrans(APART)
_MARKS_APART = frozenset(mark for letters in APART.values() for mark in letters[1:])

# What keyboards, word processors and PDF files put in the place of another character: typed -> replacements, of which
# the first that the training text has is taken. Most are those of Moses' normalize-punctuation.perl.
TYPED = {
    **dict.fromkeys("“”„‟«»″〝〞〟❝❞", ('"',)),
    **dict.fromkeys("‘’‚‛′`´ʼʻ‹›", ("'", "’")),
    "'": ("’", "ʼ"),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", ("-",)),  # hyphens, the figure and the en dash, minus
    "―": ("—", "–"),
    "…": ("...",),
    # Marks that are not seen: the soft hyphen, zero width, directions, a byte order mark, emoji's variants.
    **dict.fromkeys(
        "\u00ad\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff", ("",)
    ),
    **dict.fromkeys("\ufe0e\ufe0f", ("",)),
}
# Unicode's kinds of compatibility characters that differ from their plain ones by width or place in a word alone.
SAME_BUT_SHAPE = ("<wide>", "<narrow>", "<noBreak>", "<initial>", "<medial>", "<final>", "<isolated>")
LIGATURES = range(0xFB00, 0xFB18)  # ﬁ and its like, of PDF files


@dataclass(frozen=True)
class Form:
    """The form of a training text in one language.

    unicode: "NFC" or "NFD" if the text is consistently so, else ""; replace: character that the text never has -> what
    it has in its place; join: letters that Unicode's NFC writes as several characters -> the one that the text has.
    """

    unicode: str = ""
    replace: dict[str, str] = field(default_factory=dict)
    join: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        """Check the fields, which a file may give; ValueError."""
        texts = chain.from_iterable([*self.replace.items(), *self.join.items()])
        if self.unicode not in ("", "NFC", "NFD") or not all(isinstance(text, str) for text in texts):
            raise ValueError("form")
        # made once, because apply is called for every line; a frozen dataclass refuses self._table = ...
        object.__setattr__(self, "_table", str.maketrans(self.replace))

    def apply(self, line: str) -> str:
        """Return the line in this form; one that is in it already stays as it is."""
        line = line.translate(self._table)  # type: ignore[attr-defined]  # set above
        if self.unicode:
            line = normalize(self.unicode, line)
        for letters, letter in self.join.items():
            line = line.replace(letters, letter)
        return line

    @classmethod
    def of_characters(cls, characters: Iterable[str], unicode: str, joined: bool) -> Form:
        """Return the form of a text that has these characters.

        unicode: the text's, as in Form; joined: whether it has the letters of APART as one character.
        """
        has = set(characters)
        join = {}
        if joined:
            join = {letters: letter for letter, letters in APART.items() if letter in has}

        parts = set(has)
        if unicode == "NFC":  # ﾞ becomes a mark, which the letter before it takes in
            parts |= set(normalize("NFD", "".join(has)))

        def is_there(text: str) -> bool:
            """Return whether the training text has all characters of a replacement."""
            if unicode:
                text = normalize(unicode, text)
            return parts.issuperset(text)

        replace = {}
        for typed, replacements in _replacements().items():
            if typed in has:
                continue
            for replacement in replacements:
                if is_there(replacement):
                    replace[typed] = replacement
                    break
        return cls(unicode, replace, join)

    @classmethod
    def of_pieces(cls, pieces: Iterable[str], escaped: bool = False) -> Form:
        """Return the form of a training text as far as the pieces of its dictionary tell.

        escaped: whether Moses' names stand for some characters, as &quot; does.
        """
        texts = [piece.removesuffix("@@").replace("\u2581", " ") for piece in pieces]
        if escaped:
            texts = [html.unescape(text) for text in texts]
            texts += [text.upper() for text in texts]  # of a lower-cased corpus, whose lines come in both cases

        characters = {" ", *"".join(texts)}
        unicode = _unicode_of(texts, characters)
        has_as_one = not characters.isdisjoint(APART)
        has_as_several = not characters.isdisjoint(_MARKS_APART)
        return cls.of_characters(characters, unicode, joined=has_as_one and not has_as_several)


def _unicode_of(pieces: list[str], characters: set[str]) -> str:
    """Return the Unicode form of pieces of text, "" if it is not certain."""
    composed = sum(1 for piece in pieces if not is_normalized("NFD", piece))
    decomposed = sum(1 for piece in pieces if not _is_composed(piece))
    marks = not characters.isdisjoint(_second_parts())  # maybe apart from their letters, each in a piece of its own

    if not composed and (decomposed or marks):
        return "NFD"
    if not decomposed and not marks:
        return "NFC"

    # pieces of both forms: those of the rarer one may be strays
    if STRAY * composed >= max(1, decomposed):
        return "NFC"
    if STRAY * decomposed >= max(1, composed):
        return "NFD"
    return ""


def _is_composed(text: str) -> bool:
    """Return whether a text is in NFC, but for the letters that NFC never has as one."""
    return is_normalized("NFC", text) or is_normalized("NFC", text.translate(_TO_APART))


@lru_cache(maxsize=1)
def _second_parts() -> frozenset[str]:
    """Return all characters that NFC joins with the one before them: accents, and Korean vowels and finals."""
    found = {chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))}  # Korean
    for code in range(0xC0, 0x3100):
        decomposed = normalize("NFD", chr(code))
        found.update(decomposed[1:])
    return frozenset(found)


@lru_cache(maxsize=1)
def _replacements() -> dict[str, tuple[str, ...]]:
    """Return TYPED, and Unicode's other spaces and shapes of letters -> plain ones; wide and narrow ones both ways."""
    found = dict(TYPED)
    for code in range(0xA0, 0x10000):
        char = chr(code)
        plain = normalize("NFKC", char)
        kind = decomposition(char)
        if char.isspace():
            found[char] = (" ",)
        elif kind.startswith(SAME_BUT_SHAPE) or code in LIGATURES:
            found[char] = (*found.get(char, ()), plain)
            if kind.startswith(("<wide>", "<narrow>")) and len(plain) == 1:
                found[plain] = (*found.get(plain, ()), char)
    return found


class _Counted:
    """Counts of the characters and lines of a text in one language.

    Lines wait until there are CHUNK of them and are counted together, which is some 20 times as fast. counts: of each
    character, by its code; lines: not in ASCII alone; composed, decomposed: those of them that are in NFC, and in NFD.
    """

    def __init__(self):
        self.counts = np.zeros(maxunicode + 1, np.int64)
        self.lines = 0
        self.composed = 0
        self.decomposed = 0
        self.waiting: list[str] = []

    def add(self, line: str) -> None:
        """Take in a line."""
        self.waiting.append(line)
        if len(self.waiting) == CHUNK:
            self.count()

    def count(self) -> None:
        """Count the lines that wait."""
        text = "".join(self.waiting)
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        found = np.bincount(codes, minlength=1)
        self.counts[: len(found)] += found

        for line in self.waiting:
            if line.isascii():
                continue
            self.lines += 1
            if _is_composed(line):
                self.composed += 1
            if is_normalized("NFD", line):
                self.decomposed += 1
        self.waiting.clear()

    def facts(self) -> dict:
        """Return what text_form.json holds of a language."""
        self.count()
        enough = (1 - STRAY) * self.lines
        if self.composed >= enough:
            unicode = "NFC"
        elif self.decomposed >= enough:
            unicode = "NFD"
        else:
            unicode = ""

        as_one = self.counts[list(map(ord, APART))].sum()
        marks = self.counts[list(map(ord, _MARKS_APART))].sum()
        joined = as_one > 0 and marks <= STRAY * as_one
        characters = "".join(map(chr, np.flatnonzero(self.counts)))
        return {"unicode": unicode, "joined": bool(joined), "characters": characters}


class TextForm:
    """The form of a training text that is read once, line by line; its memory does not grow with the text."""

    def __init__(self, languages: Iterable[str]):
        self.languages = {language: _Counted() for language in languages}

    def add(self, row: Iterable[str]) -> None:
        """Take in a line of each language."""
        for counted, line in zip(self.languages.values(), row, strict=True):
            counted.add(line)

    def write(self, folder: Path) -> None:
        """Write text_form.json into the folder of the prepared data."""
        write_json(folder / NAME, {language: counted.facts() for language, counted in self.languages.items()})


def read_form(folder: Path, language: str) -> Form | None:
    """Read the form of a language's training text; None if the folder records none, UserError for another content."""
    path = folder / NAME
    if not path.is_file():
        return None
    facts = read_object(path, MEND).get(language)
    if facts is None:
        return None
    try:
        return Form.of_characters(facts["characters"], facts["unicode"], facts["joined"])
    except WRONG_VALUES as error:
        raise UserError(f"{path}: is not as `deepnet prepare text` writes it ({error}); {MEND}") from error


FILLER = re.compile(r"madeupword\d{4}|<0x[0-9A-F]{2}>")  # fairseq's padding of a dictionary; pieces of single bytes


def text_pieces(symbols: Iterable[str], other_than: Iterable[str] = ()) -> list[str]:
    """Return the symbols of a dictionary that are pieces of text; other_than: its marks, as tags of languages."""
    marks = {"<s>", "<pad>", "<blank>", "</s>", "<unk>", *other_than}
    return [symbol for symbol in symbols if symbol not in marks and not FILLER.fullmatch(symbol)]
