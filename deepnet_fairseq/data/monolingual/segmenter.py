"""Cuts text into pieces as a language model's training text was: fairseq's own encoders, remembered beside the data.

DATA/text.json holds fairseq's settings: {"bpe": "sentencepiece", "sentencepiece_model": "spm.model"} or {"bpe": "gpt2",
"gpt2_encoder_json": "encoder.json", "gpt2_vocab_bpe": "vocab.bpe"}, with file names from the folder.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fairseq.data import encoders
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

from ...errors import UserError
from ...json_text import read_object
from ..lines import read_lines
from ..multilingual.vocabulary import Vocabulary
from ..steps import write_json

NAME = "text.json"
MEND = "take those of GPT-2"


def sentencepiece_symbols(files: dict[str, Path]) -> list[str]:
    """The pieces of Kudo and Richardson 2018 (arXiv 1808.06226), which are written as they are."""
    return Vocabulary(files["sentencepiece_model"]).pieces


def gpt2_symbols(files: dict[str, Path]) -> list[str]:
    """Of the byte-level BPE of Radford et al. 2019: fairseq writes its pieces as their numbers."""
    path = files["gpt2_encoder_json"]
    numbers = read_object(path, MEND)
    values = list(numbers.values())
    if any(type(number) is not int or number < 0 for number in values) or len(set(values)) < len(values):
        raise UserError(f"{path}: must give each piece a whole number of its own; {MEND}")
    if missing := [symbol for symbol in bytes_to_unicode().values() if symbol not in numbers]:
        raise UserError(f"{path}: has no number for {len(missing)} of the 256 bytes ({missing[0]!r}); {MEND}")
    merges = files["gpt2_vocab_bpe"]
    for number, line in enumerate(read_lines(merges), 1):
        pair = line.split(" ")
        if number == 1 and not line.startswith("#version"):  # fairseq passes over it whatever it is
            raise UserError(f"{merges}, line 1: is not #version; {MEND}")
        if number > 1 and (len(pair) != 2 or "".join(pair) not in numbers):
            raise UserError(f"{merges}, line {number}: is not two pieces that are one in encoder.json; {MEND}")
    return [str(number) for number in sorted(values)]


@dataclass(frozen=True)
class Kind:
    """files: fairseq's setting -> name of the file in the folder of the data.

    symbols: those files -> all that text may be cut into, as it stands in fairseq's dictionary; UserError for files
    that are broken.
    """

    files: dict[str, str]
    symbols: Callable[[dict[str, Path]], list[str]]


KINDS = {  # of fairseq's --bpe
    "sentencepiece": Kind({"sentencepiece_model": "spm.model"}, sentencepiece_symbols),
    "gpt2": Kind({"gpt2_encoder_json": "encoder.json", "gpt2_vocab_bpe": "vocab.bpe"}, gpt2_symbols),
}


class Segmenter:
    """kind: one of KINDS; files: fairseq's setting -> path. UserError, naming the file, if one is missing or broken."""

    def __init__(self, kind: str, files: dict[str, Path]):
        self.kind, self.files = kind, files
        for path in files.values():
            if not path.is_file():
                raise UserError(f"{path}: {'is no ordinary file' if path.exists() else 'no such file'}")
        self.symbols = KINDS[kind].symbols(files)
        settings = {setting: str(path) for setting, path in files.items()}
        self._bpe = encoders.build_bpe(argparse.Namespace(bpe=kind, **settings))

    def encode(self, line: str) -> str:
        """Pieces separated by blanks, "" for a line of white space; that around the line does not count."""
        return self._bpe.encode(line.strip())

    def write(self, folder: Path, **facts) -> None:
        """Copies of the files, unless they lie there, and text.json with `facts` beside the settings."""
        names = KINDS[self.kind].files
        for setting, path in self.files.items():
            if path != folder / names[setting]:
                shutil.copyfile(path, folder / names[setting])
        write_json(folder / NAME, {"bpe": self.kind} | names | facts)


def read(folder: Path) -> Segmenter:
    """That of the data in `folder`; UserError if it holds none."""
    path = folder / NAME
    mend = "make the data with `deepnet prepare-lm`, or write their BPE there as docs/language_models.md says"
    content = read_object(path, mend)
    kind = content.get("bpe")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserError(f'{path}: "bpe" must be one of {", ".join(KINDS)}; {mend}')
    files = KINDS[kind].files
    if missing := [setting for setting in files if not isinstance(content.get(setting), str)]:
        raise UserError(f"{path}: lacks {missing[0]!r}; {mend}")
    return Segmenter(kind, {setting: folder / content[setting] for setting in files})
