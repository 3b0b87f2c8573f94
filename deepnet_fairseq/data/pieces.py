"""Cut lines into the pieces of a SentencePiece model, and count these."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import sentencepiece


class Cutter:
    """Cutter of lines into the pieces of a SentencePiece model; raises a RuntimeError for bytes that are none.

    SentencePiece gives the numbers of pieces faster than the pieces. So pieces are looked up by number, except in lines
    with characters that the model lacks: they all have one number, from which they cannot be looked up.

    model: bytes of the model's file
    pieces: of the model, by number
    """

    def __init__(self, model: bytes):
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.unknown = self.processor.unk_id()
        self.pieces = [self.processor.id_to_piece(number) for number in range(len(self.processor))]

    def cut(self, lines: list[str]) -> tuple[str, Counts]:
        """Return the lines in pieces, as one text, and how often each piece occurs.

        In the text blanks are between the pieces, and "\\n" between the lines.
        """
        numbered = self.processor.encode(lines, out_type=int, num_threads=1)
        counts = Counts(len(self.pieces))
        cut_lines = []
        for line, numbers in zip(lines, numbered, strict=True):
            if self.unknown in numbers:
                text = " ".join(self.processor.encode(line, out_type=str))
                counts.others.update(text.split())
                numbers.clear()  # so that this line is not counted by number below
            else:
                text = " ".join([self.pieces[number] for number in numbers])
            cut_lines.append(text)

        all_numbers = np.fromiter(chain.from_iterable(numbered), np.int64)
        counts.numbered += np.bincount(all_numbers, minlength=len(self.pieces))
        return "\n".join(cut_lines), counts

    def total(self, counts: Counts) -> Counter:
        """Return word -> its count, for the words that text.split() finds in the cut text.

        Such a word is a piece, but for a piece that holds white space.
        """
        total = Counter(counts.others)
        for piece, count in zip(self.pieces, counts.numbered.tolist(), strict=True):
            if count == 0:  # a piece that does not occur must not become a word with the count 0
                continue
            for word in piece.split():
                total[word] += count
        return total


class Counts:
    """Counts of pieces in lines that a Cutter has cut.

    pieces: how many the model has
    numbered: count of each piece, by its number in the model, [pieces]; of lines whose characters the model knows
    others: word -> its count; of all other lines
    """

    def __init__(self, pieces: int):
        self.numbered = np.zeros(pieces, np.int64)
        self.others: Counter = Counter()

    def add(self, counts: Counts) -> None:
        """Add the counts of further lines."""
        self.numbered += counts.numbered
        self.others.update(counts.others)
