"""Cuts text into pieces as a language model's training text was: fairseq's own encoders, remembered beside the data.

DATA/text.json holds fairseq's settings: {"bpe": "sentencepiece", "sentencepiece_model": "spm.model"} or {"bpe": "gpt2",
"gpt2_encoder_json": "encoder.json", "gpt2_vocab_bpe": "vocab.bpe"}, with file names from the folder.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from fairseq.data import encoders

from ...errors import UserError
from ...json_text import read_object
from ..steps import write_json
from .kinds import KINDS

NAME = "text.json"


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
    kind = KINDS.get(content["bpe"]) if isinstance(content.get("bpe"), str) else None
    if kind is None:
        raise UserError(f'{path}: "bpe" must be one of {", ".join(KINDS)}; {mend}')
    if missing := [setting for setting in kind.files if not isinstance(content.get(setting), str)]:
        raise UserError(f"{path}: lacks {missing[0]!r}; {mend}")
    return Segmenter(kind.name, {setting: folder / content[setting] for setting in kind.files})
