"""The ways to cut text into pieces that fairseq knows: which files each needs, and which symbols can come of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

from ...errors import UserError
from ...json_text import read_object
from ..lines import read_lines
from ..multilingual.vocabulary import Vocabulary


class Kind(ABC):
    """name: of fairseq's --bpe; files: fairseq's setting -> name of the file in the folder of the data."""

    name: str
    files: dict[str, str]

    @abstractmethod
    def symbols(self, files: dict[str, Path]) -> list[str]:
        """All that text may be cut into, as it stands in fairseq's dictionary; UserError for files that are broken."""


class SentencePiece(Kind):
    """Kudo and Richardson 2018 (arXiv 1808.06226); pieces are written as they are."""

    name = "sentencepiece"
    files = {"sentencepiece_model": "spm.model"}

    def symbols(self, files: dict[str, Path]) -> list[str]:
        return Vocabulary(files["sentencepiece_model"]).pieces


class GPT2(Kind):
    """Byte-level BPE of Radford et al. 2019, whose pieces fairseq writes as their numbers."""

    name = "gpt2"
    files = {"gpt2_encoder_json": "encoder.json", "gpt2_vocab_bpe": "vocab.bpe"}
    MEND = "take those of GPT-2"

    def symbols(self, files: dict[str, Path]) -> list[str]:
        path = files["gpt2_encoder_json"]
        numbers = read_object(path, self.MEND)
        values = list(numbers.values())
        if any(type(number) is not int or number < 0 for number in values) or len(set(values)) < len(values):
            raise UserError(f"{path}: must give each piece a whole number of its own; {self.MEND}")
        if missing := [symbol for symbol in bytes_to_unicode().values() if symbol not in numbers]:
            raise UserError(f"{path}: has no number for {len(missing)} of the 256 bytes ({missing[0]!r}); {self.MEND}")
        self._check_merges(files["gpt2_vocab_bpe"], numbers)
        return [str(number) for number in sorted(values)]

    def _check_merges(self, path: Path, numbers: dict) -> None:
        """They follow a line with the version, which fairseq passes over whatever it is."""
        for number, line in enumerate(read_lines(path), 1):
            pair = line.split(" ")
            merge = len(pair) == 2 and "".join(pair) in numbers
            if not (line.startswith("#version") if number == 1 else merge):
                wrong = "two pieces that are one in encoder.json" if number > 1 else "#version"
                raise UserError(f"{path}, line {number}: is not {wrong}; {self.MEND}")


KINDS = {kind.name: kind for kind in (SentencePiece(), GPT2())}
