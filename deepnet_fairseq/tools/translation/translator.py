"""Translate lines of text with an engine; count lines that its model does not know all of, or that are too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from ...data.lines import is_blank, one_line
from ...errors import UserError
from .description import Description, derive_form
from .engines import Hypothesis

CHUNK = 1000  # lines that are translated together; the engine makes batches of those of about one length
SHOWN = 8  # how many characters, or lines, a message names


class Unseen:
    """Count of lines with pieces that are not in a model's vocabulary, which it reads as <unk>.

    lines: the number of such lines; characters: character that is in no piece of the vocabulary -> how often it is in
    these lines; pieces: piece of which the model knows each character, but not the piece, as may be with subword-nmt
    and with text that comes segmented -> how often.
    """

    def __init__(self):
        self.lines = 0
        self.characters: Counter[str] = Counter()
        self.pieces: Counter[str] = Counter()

    def add(self, pieces: list[str], known: frozenset[str]) -> None:
        """Count a line, if it has pieces that are not in the model's vocabulary, and what of these is unseen.

        pieces: those of the line that are not in the vocabulary, [] if there is none; known: the characters of all
        pieces in the vocabulary.
        """
        if pieces:
            self.lines += 1
        for piece in pieces:
            text = piece.strip("\u2581")  # SentencePiece's mark for a blank
            if not text:  # SentencePiece makes the blank before an unseen character a piece of its own
                continue
            unknown = [char for char in text if char not in known]
            self.characters.update(unknown)
            if not unknown:
                self.pieces[piece] += 1

    def __str__(self) -> str:
        """Return the SHOWN most frequent characters, and pieces, and how many more there are, for a message."""
        parts = []
        if self.characters:
            parts.append(_most_common("character", self.characters, _with_code_point))
        if self.pieces:
            parts.append(_most_common("piece", self.pieces, repr))
        return "; ".join(parts)


def _most_common(noun: str, counts: Counter[str], shown: Callable[[str], str]) -> str:
    """Return "characters é (U+00E9), ж (U+0436) and 2 more" for a message: the SHOWN most frequent ones.

    noun: what they are, in the singular; shown: returns one of them as the message has it.
    """
    listed = ", ".join(shown(text) for text, _ in counts.most_common(SHOWN))
    nouns = noun if len(counts) == 1 else f"{noun}s"
    more = len(counts) - SHOWN
    return f"{nouns} {listed} and {more:,} more" if more > 0 else f"{nouns} {listed}"


def _with_code_point(char: str) -> str:
    """Return a character with its number in Unicode, "ж (U+0436)"; as Python escapes it if it shows nothing."""
    return f"{char} (U+{ord(char):04X})" if char.isprintable() else ascii(char)


class TooLong:
    """Count of lines that have more tokens than a model has positions, and so stay without a translation.

    lines: the number of such lines; numbers: those of the first SHOWN of them, from 1.
    """

    def __init__(self):
        self.lines = 0
        self.numbers: list[int] = []

    def add(self, number: int) -> None:
        """Count the line of that number."""
        self.lines += 1
        if len(self.numbers) < SHOWN:
            self.numbers.append(number)

    def __str__(self) -> str:
        """Return "line 7", or "lines 7, 9 and 2 more", for a message."""
        listed = ", ".join(map(str, self.numbers))
        more = self.lines - len(self.numbers)
        noun = "line" if self.lines == 1 else "lines"
        return f"{noun} {listed} and {more:,} more" if more else f"{noun} {listed}"


class Translator:
    """Translates lines of text.

    engine: an object of a class of engines.py; described: text that its model reads and writes (description.py), of
    which the number of positions and the form of the source text are used here.
    """

    def __init__(self, engine: Any, described: Description):
        self.engine = engine
        self.source_positions, _ = described.positions
        self.form = described.form or derive_form(described, engine.symbols)
        self.known_characters = frozenset("".join(engine.symbols))
        # unseen characters and pieces that translation.translate has warned of already
        self.warned_of: set[str] = set()

    def cut(self, line: str, number: int, unseen: Unseen | None = None, too_long: TooLong | None = None) -> list | None:
        """Segment a line into the engine's tokens, pieces or numbers; return None for a line without a translation.

        That is a blank line, and one that has more tokens than the model has positions.

        number: of the line, for messages; unseen: to which the line's unseen pieces are added, None to add them to
        nothing; too_long: to which the line is added if it has too many tokens; None to raise a UserError for it.
        """
        line = self.form.apply(one_line(line))  # characters as the training text writes them
        if is_blank(line):
            return None

        tokens = self.engine.cut(line)
        length = len(tokens) + 1  # with the end
        if length > self.source_positions:
            if too_long is None:
                raise UserError(
                    f"line {number}",
                    f"is {length:,} tokens long, and the model has positions for {self.source_positions:,}; split it",
                )
            too_long.add(number)
            return None

        if unseen is not None:
            unseen.add(self.engine.unseen(line, tokens), self.known_characters)
        return tokens

    def translate(
        self, lines: Iterable[str], chunk: int = CHUNK, nbest: int | None = None, unseen: Unseen | None = None,
        too_long: TooLong | None = None,
    ) -> Iterator[Any]:  # fmt: skip
        """Yield the translation of each line, in order; it is empty for a line of which `cut` returns None.

        chunk: how many lines are read and translated together; nbest: None to yield texts; a number to yield for each
        line a list of its `nbest` best Hypotheses, best first, [Hypothesis("", 0.0)] for an empty translation; unseen,
        too_long: as for `cut`.
        """
        remaining = iter(lines)
        number = 1  # of the next line
        while next_lines := list(islice(remaining, chunk)):
            yield from self.translate_chunk(next_lines, number=number, nbest=nbest, unseen=unseen, too_long=too_long)
            number += len(next_lines)

    def translate_chunk(
        self, lines: list[str], number: int = 1, nbest: int | None = None, unseen: Unseen | None = None,
        too_long: TooLong | None = None,
    ) -> list[Any]:  # fmt: skip
        """Translate lines together, and return what `translate` yields for them.

        number: of the first line, for messages; other arguments as for `translate`.
        """
        sentences = [self.cut(line, line_number, unseen, too_long) for line_number, line in enumerate(lines, number)]
        given = [tokens for tokens in sentences if tokens is not None]
        results: list[Any] = []
        if given:
            results = self.engine.translate(given) if nbest is None else self.engine.nbest(given, nbest)

        # put the lines without a translation back between the others
        translations: list[Any] = []
        next_result = iter(results)
        for tokens in sentences:
            if tokens is not None:
                translations.append(next(next_result))
            elif nbest is None:
                translations.append("")
            else:
                translations.append([Hypothesis("", 0.0)])
        return translations
