"""Cut lines into the pieces of a SentencePiece model, and count these."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import sentencepiece


class Cutter:
    """Cutter of lines by a SentencePiece model; raises a RuntimeError for bytes that are none.

    SentencePiece gives numbers faster than pieces. So only lines with characters that the model lacks, which its
    numbers do not tell apart, are cut into pieces directly.
    """

    def __init__(self, model: bytes):
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.unknown = self.processor.unk_id()
        self.pieces = [self.processor.id_to_piece(number) for number in range(len(self.processor))]

    def cut(self, lines: list[str]) -> tuple[str, Counts]:
        """Return the lines in pieces, with blanks between, and how often each piece comes."""
        numbered = self.processor.encode(lines, out_type=int, num_threads=1)
        counts = Counts(len(self.pieces))
        cut_lines = []
        for line, numbers in zip(lines, numbered, strict=True):
            if self.unknown in numbers:
                text = " ".join(self.processor.encode(line, out_type=str))
                counts.others.update(text.split())
                numbers.clear()  # counted among the others, not by number
            else:
                text = " ".join([self.pieces[number] for number in numbers])
            cut_lines.append(text)

        flat = np.fromiter(chain.from_iterable(numbered), np.int64)
        counts.numbered += np.bincount(flat, minlength=len(self.pieces))
        return "\n".join(cut_lines), counts

    def total(self, counts: Counts) -> Counter:
        """Return word, as text.split() finds them in the cut text -> its count."""
        total = Counter(counts.others)
        for piece, count in zip(self.pieces, counts.numbered.tolist(), strict=True):
            if count == 0:  # a piece that does not occur must not become a word with the count 0
                continue
            for word in piece.split():
                total[word] += count
        return total


class Counts:
    """Counts of pieces.

    numbered: by their number in the model; others: word -> its count, in lines that have characters unknown to the
    model; pieces: of the model.
    """

    def __init__(self, pieces: int):
        self.numbered = np.zeros(pieces, np.int64)
        self.others: Counter = Counter()

    def add(self, counts: Counts) -> None:
        """Add the counts of other lines."""
        self.numbered += counts.numbered
        self.others.update(counts.others)
