"""Segment text into the pieces that a translation model reads, and join those that it writes.

A kind of pieces is a class with cut(line) -> pieces and join(pieces) -> line. Each segments as the commands that
prepared the data do: SentencePiece of `deepnet prepare text`, Moses' tokens and subword-nmt's codes of the recipes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import UserError

CONTINUED = "@@"  # ends a piece of subword-nmt that is not the last one of its word


class SentencePieces:
    """Pieces of a SentencePiece model (Kudo and Richardson 2018)."""

    file = "spm.model"

    def __init__(self, path: Path, source: str, target: str, chain: dict | None):
        import sentencepiece

        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError) as error:
            raise UserError(f"{path}: no SentencePiece model") from error

    def cut(self, line: str) -> list[str]:
        """Return the pieces of a line."""
        return self.processor.encode(line, out_type=str)

    def join(self, pieces: list[str]) -> str:
        """Return the text of the pieces."""
        return self.processor.decode(pieces).strip()


class MosesPieces:
    """Moses' tokens, segmented by the codes of subword-nmt (Sennrich et al. 2016).

    chain: fields of data.moses.Chain, by which the data's test set was tokenised.
    """

    file = "codes"

    def __init__(self, path: Path, source: str, target: str, chain: dict | None):
        from sacremoses import MosesDetokenizer

        from ...data.lines import read_lines
        from ...data.moses import Chain, line_function

        try:
            from subword_nmt.apply_bpe import BPE
        except ImportError as error:
            raise UserError(f"{path}: subword-nmt is not installed; pip install subword-nmt") from error

        for number, line in enumerate(read_lines(path), 1):
            if len(line.split(" ")) != 2:  # the first line may be a version, which is two words as well
                raise UserError(f"{path}, line {number}: is no merge of two pieces; give the data's own codes")

        with open(path, encoding="utf-8", newline="\n") as codes:
            self.codes = BPE(codes)
        self.tokenise = line_function(source, Chain(**(chain or {})))
        self.detokenise = MosesDetokenizer(target).detokenize

    def cut(self, line: str) -> list[str]:
        """Return the pieces of a line."""
        return self.codes.process_line(self.tokenise(line)).split()

    def join(self, pieces: list[str]) -> str:
        """Return the text of the pieces."""
        words = f"{' '.join(pieces)} ".replace(f"{CONTINUED} ", "")
        return self.detokenise(words.split())


class ReadyPieces:
    """Text that somebody has segmented already: blanks separate its pieces."""

    file = None

    def __init__(self, path: Path, source: str, target: str, chain: dict | None):
        pass

    def cut(self, line: str) -> list[str]:
        """Return what blanks separate."""
        return line.split()

    def join(self, pieces: list[str]) -> str:
        """Return the pieces, a blank between."""
        return " ".join(pieces)


KINDS: dict[str, Any] = {"sentencepiece": SentencePieces, "subword_nmt": MosesPieces, "none": ReadyPieces}
