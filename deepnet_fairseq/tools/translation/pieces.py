"""Segment text into the pieces that a translation model reads, and join those that it writes.

KINDS has a class for each kind of pieces. An object of such a class, a cutter, has
    cut(line)       returns the pieces of a line; to cut is to segment
    join(pieces)    returns the text of pieces
    file            the name, beside the data and in an exported folder, of the file that it segments by; None for none
All classes have the same arguments, of which each uses what it needs:
    path            of that file, None for a class without one
    source          language of the text to segment, as "de"
    target          language of the pieces to join
    chain           fields of data.moses.Chain, the scripts that make Moses' tokens; None for other pieces
Each segments as the command that prepared the data: `deepnet prepare text` by SentencePiece, the recipes of `deepnet
prepare` by Moses' tokeniser and subword-nmt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import UserError

CONTINUED = "@@"  # ends a piece of subword-nmt that is not the last one of its word


class SentencePieces:
    """Pieces of a SentencePiece model (Kudo and Richardson 2018); UserError if the file is no such model."""

    file = "spm.model"

    def __init__(self, path: Path, source: str, target: str, chain: dict | None):
        import sentencepiece

        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError) as error:
            raise UserError(path, "no SentencePiece model") from error

    def cut(self, line: str) -> list[str]:
        """Return the pieces of a line."""
        return self.processor.encode(line, out_type=str)

    def join(self, pieces: list[str]) -> str:
        """Return the text of the pieces."""
        return self.processor.decode(pieces).strip()


class MosesPieces:
    """Moses' tokens, segmented by the BPE of subword-nmt (Sennrich et al. 2016).

    path: of subword-nmt's codes, a merge of two pieces on each line; chain: of the data's test set. UserError if
    subword-nmt is not installed, and for a file of other content.
    """

    file = "codes"

    def __init__(self, path: Path, source: str, target: str, chain: dict | None):
        from sacremoses import MosesDetokenizer

        from ...data.lines import read_lines
        from ...data.moses import Chain, line_function

        try:
            from subword_nmt.apply_bpe import BPE
        except ImportError as error:
            raise UserError(path, "subword-nmt is not installed; pip install subword-nmt") from error

        for number, line in enumerate(read_lines(path), 1):
            if len(line.split(" ")) != 2:  # the first line may be a version, which is two words as well
                raise UserError(f"{path}, line {number}", "is no merge of two pieces; give the data's own codes")

        with open(path, encoding="utf-8", newline="\n") as codes:
            self.codes = BPE(codes)
        self.tokenise = line_function(source, Chain(**(chain or {})))
        self.detokenise = MosesDetokenizer(target).detokenize

    def cut(self, line: str) -> list[str]:
        """Return the pieces of a line."""
        return self.codes.process_line(self.tokenise(line)).split()

    def join(self, pieces: list[str]) -> str:
        """Return the text of the pieces."""
        text = " ".join(pieces) + " "  # a blank after each piece, also the last one, which may be continued too
        tokens = text.replace(f"{CONTINUED} ", "").split()
        return self.detokenise(tokens)


class ReadyPieces:
    """Text that somebody has segmented already: blanks separate its pieces."""

    file = None

    def __init__(self, path: Path | None, source: str, target: str, chain: dict | None):
        """Take the arguments of all classes; none is needed."""

    def cut(self, line: str) -> list[str]:
        """Return what blanks separate."""
        return line.split()

    def join(self, pieces: list[str]) -> str:
        """Return the pieces, a blank between."""
        return " ".join(pieces)


# name of a kind, as translation.json has it -> its class
KINDS: dict[str, Any] = {"sentencepiece": SentencePieces, "subword_nmt": MosesPieces, "none": ReadyPieces}
