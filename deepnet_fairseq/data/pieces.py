"""Cut lines into the pieces of a SentencePiece model, and count these.

A piece has a number, its place in the model.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import sentencepiece


class Cutter:
    """Cuts lines into the pieces of a SentencePiece model.

    SentencePiece returns the numbers of pieces faster than the pieces as text. So it is asked for the numbers, and the
    text is looked up in `pieces`. This is not possible in lines with characters that the model lacks, because all such
    characters have the number `unknown`: there SentencePiece is asked for the text.

    model: bytes of the model's file; a RuntimeError is raised if they are no model
    processor: SentencePiece's object for the model
    unknown: number of the piece <unk>
    pieces: text of each piece, by number
    """

    def __init__(self, model: bytes):
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.unknown = self.processor.unk_id()
        self.pieces = [self.processor.id_to_piece(number) for number in range(len(self.processor))]

    def cut(self, lines: list[str]) -> tuple[str, Counts]:
        """Return (the lines in pieces, as one text; how often each piece occurs).

        In the text blanks are between the pieces, and "\\n" between the lines.
        """
        numbered = self.processor.encode(lines, out_type=int, num_threads=1)  # list of numbers for each line
        counts = Counts(len(self.pieces))
        cut_lines = []
        for line, numbers in zip(lines, numbered, strict=True):
            if self.unknown in numbers:
                text = " ".join(self.processor.encode(line, out_type=str))
                counts.others.update(text.split())
                numbers.clear()  # this empties the line's list in `numbered`, so that it is not counted again below
            else:
                text = " ".join([self.pieces[number] for number in numbers])
            cut_lines.append(text)

        all_numbers = np.fromiter(chain.from_iterable(numbered), np.int64)
        counts.numbered += np.bincount(all_numbers, minlength=len(self.pieces))
        return "\n".join(cut_lines), counts

    def total(self, counts: Counts) -> Counter:
        """Return piece -> its count, where pieces are what text.split() finds in the cut text, as fairseq splits it.

        A piece of the model that holds white space counts as several.

        counts: as `cut` returns them, added up
        """
        total = Counter(counts.others)
        for piece, count in zip(self.pieces, counts.numbered.tolist(), strict=True):
            if count == 0:  # a piece that does not occur must not get an entry, with the count 0
                continue
            for word in piece.split():
                total[word] += count
        return total


class Counts:
    """How often pieces occur in lines that a Cutter has cut. Each line is counted in one of the two ways.

    numbered: count of each piece, by its number, [pieces]; for lines whose characters the model has
    others: piece, as text -> its count; for lines with characters that the model lacks
    """

    def __init__(self, pieces: int):
        """Begin with no counts; pieces: how many the model has."""
        self.numbered = np.zeros(pieces, np.int64)
        self.others: Counter = Counter()

    def add(self, counts: Counts) -> None:
        """Add the counts of further lines."""
        self.numbered += counts.numbered
        self.others.update(counts.others)
