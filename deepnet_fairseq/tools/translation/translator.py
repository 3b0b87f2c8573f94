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

CHUNK = 1000  # lines that are translated together; the engine makes batches of those of about one length
SHOWN = 8  # how many characters a message names


class Unseen:
    """Count of lines with characters that a model has never seen, which it reads as <unk>.

    lines: the number of such lines; characters: unseen character -> how often it is in them. In its place stands a
    whole piece where the model knows each character but not the piece, as it may be with subword-nmt.
    """

    def __init__(self):
        self.lines = 0
        self.characters: Counter[str] = Counter()

    def add(self, pieces: list[str], known: frozenset[str]) -> None:
        """Count a line by its unseen pieces, none if it has none; known: the characters of the model's vocabulary."""
        if pieces:
            self.lines += 1
        for piece in pieces:
            text = piece.strip("\u2581")
            if not text:  # SentencePiece makes the blank before an unseen character a piece of its own
                continue
            unknown = [char for char in text if char not in known]
            self.characters.update(unknown or [text])

    def __str__(self) -> str:
        """Return the most frequent characters and how many more there are, for a message."""
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
        self.source_positions, _ = described.positions
        self.form = described.form or derive_form(described, engine.symbols)
        self.known_characters = frozenset("".join(engine.symbols))
        self.warned_of: set[str] = set()  # unseen characters that translation.translate has warned of already

    def cut(self, line: str, number: int, unseen: Unseen | None = None) -> list | None:
        """Segment a line into the engine's tokens; None for a blank line.

        number: of the line, for the UserError that it has more tokens than the model has positions; unseen: counts the
        line if it has characters that the model has never seen.
        """
        line = self.form.apply(one_line(line))
        if is_blank(line):
            return None

        tokens = self.engine.cut(line)
        length = len(tokens) + 1  # with the end
        if length > self.source_positions:
            raise UserError(
                f"line {number}",
                f"is {length:,} tokens long, and the model has positions for {self.source_positions:,}; split the line",
            )

        if unseen is not None:
            unseen.add(self.engine.unseen(line, tokens), self.known_characters)
        return tokens

    def translate(
        self, lines: Iterable[str], chunk: int = CHUNK, nbest: int | None = None, unseen: Unseen | None = None
    ) -> Iterator[Any]:
        """Yield the translation of each line, in order; that of a blank line is empty.

        chunk: how many lines are read and translated together; nbest: if given, yield for each line a list of its
        `nbest` best Hypotheses, best first, in place of a text, for a blank line [Hypothesis("", 0.0)]; unseen: counts
        lines as in `cut`.
        """
        rest = iter(lines)
        number = 1  # of the next line
        while taken := list(islice(rest, chunk)):
            yield from self.translate_chunk(taken, number=number, nbest=nbest, unseen=unseen)
            number += len(taken)

    def translate_chunk(
        self, lines: list[str], number: int = 1, nbest: int | None = None, unseen: Unseen | None = None
    ) -> list[Any]:
        """Translate lines together; number: of the first one, for messages; other arguments as for `translate`."""
        sentences = [self.cut(line, line_number, unseen) for line_number, line in enumerate(lines, number)]
        not_blank = [tokens for tokens in sentences if tokens is not None]
        results: list[Any] = []
        if not_blank:
            results = self.engine.translate(not_blank) if nbest is None else self.engine.nbest(not_blank, nbest)

        translations: list[Any] = []
        remaining = iter(results)
        for tokens in sentences:
            if tokens is not None:
                translations.append(next(remaining))
            elif nbest is None:
                translations.append("")
            else:
                translations.append([Hypothesis("", 0.0)])
        return translations
