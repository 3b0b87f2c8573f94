"""Translate lines of text with an engine, and count the characters that its model has never seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from ...data.lines import is_blank, one_line
from ...errors import UserError
from .description import Description, derive_form
from .engines import Hypothesis

CHUNK = 1000  # lines that are translated together, the longest with the longest
SHOWN = 8  # characters that a message names


class Unseen:
    """Count of lines with characters that a model has never seen.

    lines: the count; characters: each with its number in these lines. A whole piece stands for its characters if the
    model knows all of them, as it may be with subword-nmt.
    """

    def __init__(self):
        self.lines = 0
        self.characters: Counter[str] = Counter()

    def add(self, pieces: list[str], known: frozenset[str]) -> None:
        """Take in the unseen pieces of a line; known: the characters of the model's vocabulary."""
        if pieces:
            self.lines += 1
        for piece in pieces:
            text = piece.strip("\u2581")
            if not text:  # SentencePiece makes the blank before an unseen character a piece of its own
                continue
            unknown = [char for char in text if char not in known]
            self.characters.update(unknown or [text])

    def __str__(self) -> str:
        shown = []
        for text, _ in self.characters.most_common(SHOWN):
            if len(text) == 1 and text.isprintable():
                shown.append(f"{text} (U+{ord(text):04X})")
            else:
                shown.append(ascii(text))

        listed = ", ".join(shown)
        more = len(self.characters) - len(shown)
        return f"{listed} and {more} more" if more else listed


class Translator:
    """Translates lines of text.

    engine: of a class of engines.py; described: says how much text its model takes, and in which form.
    """

    def __init__(self, engine: Any, described: Description):
        self.engine = engine
        self.positions = described.positions[0]
        self.form = described.form or derive_form(described, engine.symbols)
        self.characters = frozenset("".join(engine.symbols))
        self.named: set[str] = set()  # unseen characters that a warning has named

    def cut(self, line: str, number: int, unseen: Unseen | None = None) -> list | None:
        """Return the tokens of a line, None for a blank one; UserError, with the number, if they are too many.

        unseen: counts the line if it has characters that the model has never seen.
        """
        line = self.form.apply(one_line(line))
        if is_blank(line):
            return None

        tokens = self.engine.cut(line)
        length = len(tokens) + 1  # with the end
        if length > self.positions:
            raise UserError(
                f"line {number}: is {length:,} tokens long, and the model has positions for {self.positions:,}; split "
                "the line"
            )

        if unseen is not None:
            unseen.add(self.engine.unseen(line, tokens), self.characters)
        return tokens

    def translate(
        self, lines: Iterable[str], chunk: int = CHUNK, nbest: int | None = None, unseen: Unseen | None = None
    ) -> Iterator[Any]:
        """Yield the translation of each line, in order; a blank line stays empty.

        chunk: lines taken at a time; nbest: yield lists of so many Hypotheses, best first, in place of texts, for a
        blank line one that is empty, with score 0; unseen: counts lines as in `cut`.
        """
        rest = iter(lines)
        number = 1
        while taken := list(islice(rest, chunk)):
            yield from self.translate_chunk(taken, number=number, nbest=nbest, unseen=unseen)
            number += len(taken)

    def translate_chunk(
        self, lines: list[str], number: int = 1, nbest: int | None = None, unseen: Unseen | None = None
    ) -> list[Any]:
        """Translate lines together; number: of the first, for messages; other arguments as for `translate`."""
        rows = [self.cut(line, place, unseen) for place, line in enumerate(lines, number)]
        full = [tokens for tokens in rows if tokens is not None]
        results: list[Any] = []
        if full:
            results = self.engine.translate(full) if nbest is None else self.engine.nbest(full, nbest)

        translations: list[Any] = []
        remaining = iter(results)
        for tokens in rows:
            if tokens is not None:
                translations.append(next(remaining))
            elif nbest is None:
                translations.append("")
            else:
                translations.append([Hypothesis("", 0.0)])
        return translations
