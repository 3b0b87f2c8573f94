"""The form of a training text, and how a line of another form is brought to it.

One text can be written in several ways that read alike: é as one character (Unicode's NFC) or as e and an accent
(NFD), letters in full or half width, straight or curly quotes. A model knows the way of its training text, and takes
the others for unknown characters. `deepnet prepare text` counts what its training text has and records it in
text_form.json; for data without that file, the form is told from the pieces in the dictionary. A line is changed only
where that loses nothing.

A letter with an accent is composed if it is one character, and decomposed if it is a letter and a mark. Letters apart
(lines.APART) are letters of Indic scripts, Tibetan and Hebrew that Unicode decomposes even in NFC; a text may have them
as one character all the same.
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
from ..files import WRONG_VALUES, read_json_object
from .lines import APART, CHUNK
from .steps import write_json

NAME = "text_form.json"
MEND = "prepare the data again, or remove the file: then the dictionary tells the form"
STRAY = 0.01  # a text counts as written in one form if at most this share of its lines (or pieces) is in another one

_TO_APART = str.maketrans(APART)  # table for str.translate: letter apart, as one character -> as several
_MARKS_APART = frozenset(mark for letters in APART.values() for mark in letters[1:])  # their marks

# Characters that keyboards, word processors and PDF files put in the place of another -> replacements, of which the
# first that the training text has is taken. Most are those of Moses' normalize-punctuation.perl.
TYPED = {
    **dict.fromkeys("“”„‟«»″〝〞〟❝❞", ('"',)),
    **dict.fromkeys("‘’‚‛′`´ʼʻ‹›", ("'", "’")),
    "'": ("’", "ʼ"),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", ("-",)),  # hyphens, the figure and the en dash, minus
    "―": ("—", "–"),
    "…": ("...",),
    # Invisible marks: the soft hyphen, zero width, directions, a byte order mark, variation selectors of emoji.
    **dict.fromkeys(
        "\u00ad\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff", ("",)
    ),
    **dict.fromkeys("\ufe0e\ufe0f", ("",)),
}
# Tags of Unicode's compatibility decompositions of characters that differ from plain ones by width or place in a word
# alone.
SAME_BUT_SHAPE = ("<wide>", "<narrow>", "<noBreak>", "<initial>", "<medial>", "<final>", "<isolated>")
LIGATURES = range(0xFB00, 0xFB18)  # ﬁ and its like, of PDF files


@dataclass(frozen=True)
class Form:
    """The form of a training text in one language, to which other lines are brought.

    unicode: "NFC" or "NFD" if the text is written in it, "" if it has both or that is not known
    replace: character that the text never has -> what it has in its place
    join: letter apart, as several characters -> as one, for those that the text has as one
    """

    unicode: str = ""
    replace: dict[str, str] = field(default_factory=dict)
    join: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        """Raise a ValueError for fields with other values, because they may come from a file; prepare `apply`."""
        texts = chain.from_iterable([*self.replace.items(), *self.join.items()])
        if self.unicode not in ("", "NFC", "NFD") or not all(isinstance(text, str) for text in texts):
            raise ValueError("form")
        # The table is made once, because `apply` is called for every line; a frozen dataclass refuses self._table = ...
        object.__setattr__(self, "_table", str.maketrans(self.replace))

    def apply(self, line: str) -> str:
        """Return the line in this form; a line that is in it already stays as it is."""
        line = line.translate(self._table)  # type: ignore[attr-defined]  # __post_init__ sets it
        if self.unicode:
            line = normalize(self.unicode, line)
        for letters, letter in self.join.items():  # after `normalize`, which decomposes these letters even in NFC
            line = line.replace(letters, letter)
        return line

    @classmethod
    def of_characters(cls, characters: Iterable[str], unicode: str, joined: bool) -> Form:
        """Return the form of a text from what is known of it.

        characters: all that occur in the text
        unicode: "NFC" or "NFD" if the text is written in it, else ""
        joined: whether the text has letters apart as one character
        """
        has = set(characters)
        join = {}
        if joined:
            join = {letters: letter for letter, letters in APART.items() if letter in has}

        # Characters that replacements may have: those of the text, and the marks of its composed letters. A replacement
        # may be a mark, as that for ﾞ, and NFC then composes it with the letter before it.
        allowed = set(has)
        if unicode == "NFC":
            allowed |= set(normalize("NFD", "".join(has)))

        def is_allowed(replacement: str) -> bool:
            """Return whether the text has all characters of a replacement, in the form that `apply` gives it."""
            if unicode:
                replacement = normalize(unicode, replacement)
            return allowed.issuperset(replacement)

        replace = {}
        for typed, replacements in _replacements().items():
            if typed in has:  # the model knows this character
                continue
            for replacement in replacements:
                if is_allowed(replacement):
                    replace[typed] = replacement
                    break
        return cls(unicode, replace, join)

    @classmethod
    def of_pieces(cls, pieces: Iterable[str], escaped: bool = False) -> Form:
        """Return the form of a training text as far as the pieces of its dictionary tell.

        pieces: of the dictionary, without special symbols
        escaped: whether the text has entities for some characters, as &quot;, because Moses' tokeniser made them
        """
        # without the marks of subword-nmt and SentencePiece
        texts = [piece.removesuffix("@@").replace("\u2581", " ") for piece in pieces]
        if escaped:
            texts = [html.unescape(text) for text in texts]
            # Such a corpus may be lower-cased. `apply` gets lines before that is done, so upper case counts as known.
            texts += [text.upper() for text in texts]

        characters = {" ", *"".join(texts)}
        unicode = _unicode_of(texts, characters)
        has_as_one = not characters.isdisjoint(APART)
        has_as_several = not characters.isdisjoint(_MARKS_APART)
        return cls.of_characters(characters, unicode, joined=has_as_one and not has_as_several)


def _unicode_of(pieces: list[str], characters: set[str]) -> str:
    """Return "NFC" or "NFD", the form in which pieces of text are written, or "" if it is not certain.

    characters: all that occur in the pieces
    """
    composed = sum(1 for piece in pieces if not is_normalized("NFD", piece))  # pieces with a composed letter
    decomposed = sum(1 for piece in pieces if not _is_composed(piece))  # pieces with a decomposed letter
    # a mark may be a piece of its own, cut off its letter; so decomposed letters are not all in `decomposed`
    has_marks = not characters.isdisjoint(_second_parts())

    if not composed and (decomposed or has_marks):
        return "NFD"
    if not decomposed and not has_marks:
        return "NFC"

    # There are signs of both forms. If at most the share STRAY is of the rarer one, it does not count.
    if STRAY * composed >= max(1, decomposed):
        return "NFC"
    if STRAY * decomposed >= max(1, composed):
        return "NFD"
    return ""


def _is_composed(text: str) -> bool:
    """Return whether a text is in NFC, except that letters apart may be one character each."""
    return is_normalized("NFC", text) or is_normalized("NFC", text.translate(_TO_APART))


@lru_cache(maxsize=1)
def _second_parts() -> frozenset[str]:
    """Return what follows the first character of decomposed letters: accents, Korean vowels and final consonants."""
    found = {chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))}  # Korean
    # From À to the kana. Rare scripts beyond U+FFFF are left out, and Hebrew, whose letters are decomposed in NFC too.
    for code in range(0xC0, 0x3100):
        decomposed = normalize("NFD", chr(code))
        found.update(decomposed[1:])
    return frozenset(found)


@lru_cache(maxsize=1)
def _replacements() -> dict[str, tuple[str, ...]]:
    """Return character -> what may replace it, in the order in which it is tried.

    Besides those in TYPED these are: a blank for each other space of Unicode, the plain character for one that differs
    from it by shape alone, as A for Ａ (full width), and the other way round a wide or narrow character for the plain
    one. Ligatures are replaced by their letters.
    """
    found = dict(TYPED)
    for code in range(0xA0, 0x10000):  # without ASCII, control characters, and rare scripts beyond U+FFFF
        char = chr(code)
        plain = normalize("NFKC", char)
        tag_and_codes = decomposition(char)  # as "<wide> 0041"
        if char.isspace():
            found[char] = (" ",)
        elif tag_and_codes.startswith(SAME_BUT_SHAPE) or code in LIGATURES:
            found[char] = (*found.get(char, ()), plain)
            if tag_and_codes.startswith(("<wide>", "<narrow>")) and len(plain) == 1:
                found[plain] = (*found.get(plain, ()), char)
    return found


class _Counts:
    """Counts of the characters and lines of a text in one language.

    Lines are kept until there are CHUNK of them, and then counted together, which is some 20 times as fast.

    counts: how often each character occurs, by its code, [code points]
    lines: number of lines with a character beyond ASCII
    composed: number of those lines that are in NFC
    decomposed: number of those lines that are in NFD; a line without accents is in both
    waiting: lines that are not counted yet
    """

    def __init__(self):
        self.counts = np.zeros(maxunicode + 1, np.int64)
        self.lines = 0
        self.composed = 0
        self.decomposed = 0
        self.waiting: list[str] = []

    def add(self, line: str) -> None:
        """Add a line of the text."""
        self.waiting.append(line)
        if len(self.waiting) == CHUNK:
            self.count()

    def count(self) -> None:
        """Count the lines in `waiting`."""
        text = "".join(self.waiting)
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)  # one number for each character
        found = np.bincount(codes, minlength=1)  # up to the greatest code in the text
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
        """Return what text_form.json holds for a language, which are the parameters of Form.of_characters.

        "unicode": "NFC" or "NFD" if all but the share STRAY of the lines is in it, else ""
        "joined": whether the text has letters apart as one character, but for the share STRAY of them
        "characters": all that occur in the text, as one string
        """
        self.count()
        enough = (1 - STRAY) * self.lines
        if self.composed >= enough:
            unicode = "NFC"
        elif self.decomposed >= enough:
            unicode = "NFD"
        else:
            unicode = ""

        as_one = self.counts[list(map(ord, APART))].sum()  # letters apart that are one character
        as_several = self.counts[list(map(ord, _MARKS_APART))].sum()  # marks of those that are several
        joined = as_one > 0 and as_several <= STRAY * as_one
        characters = "".join(map(chr, np.flatnonzero(self.counts)))
        return {"unicode": unicode, "joined": bool(joined), "characters": characters}


class TextForm:
    """Finds the form of a training text that is read once, row by row; its memory does not grow with the text.

    A row is one line of each language, such as a sentence pair.

    languages: language -> counts of its lines, in the order of the lines in a row
    """

    def __init__(self, languages: Iterable[str]):
        self.languages = {language: _Counts() for language in languages}

    def add(self, row: Iterable[str]) -> None:
        """Add a row of the text, a line of each language."""
        for counts, line in zip(self.languages.values(), row, strict=True):
            counts.add(line)

    def write(self, folder: Path) -> None:
        """Write text_form.json, language -> what _Counts.facts returns, into the folder of the prepared data."""
        write_json(folder / NAME, {language: counts.facts() for language, counts in self.languages.items()})


def read_form(folder: Path, language: str) -> Form | None:
    """Return the form of a language's training text, from text_form.json in the folder of the data.

    Returns None if there is no such file, or no such language in it. Raises a UserError for a file with other content.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    facts = read_json_object(path, MEND).get(language)
    if facts is None:
        return None
    try:
        return Form.of_characters(facts["characters"], facts["unicode"], facts["joined"])
    except WRONG_VALUES as error:
        raise UserError(path, f"is not as `deepnet prepare text` writes it ({error}); {MEND}") from error


FILLER = re.compile(r"madeupword\d{4}|<0x[0-9A-F]{2}>")  # fairseq's padding of a dictionary; pieces of single bytes


def text_pieces(symbols: Iterable[str], other_than: Iterable[str] = ()) -> list[str]:
    """Return the symbols of a dictionary that are pieces of text, not special symbols, padding or single bytes.

    other_than: further symbols that are left out, such as tags of languages
    """
    special = {"<s>", "<pad>", "<blank>", "</s>", "<unk>", *other_than}  # "<blank>" is CTranslate2's name of <pad>
    return [symbol for symbol in symbols if symbol not in special and not FILLER.fullmatch(symbol)]
