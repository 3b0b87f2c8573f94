"""Damaged and malicious files, and checks of the error messages about them."""

from __future__ import annotations

from pathlib import Path

import numpy
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

MOST_CHARACTERS = 600  # of an error's line; the paths of tests, which it names, are long
DEEP = b"[" * 100_000  # JSON that is nested too deeply for a recursive parser


class Call:
    """Object whose unpickling calls function(*words), as a malicious checkpoint would have it."""

    def __init__(self, function, *words):
        self.function = function
        self.words = words

    def __reduce__(self):
        return self.function, self.words


def check_line(error: BaseException, *words: str) -> None:
    """Check that an error's text is one short line that contains all of `words`."""
    line = str(error)
    assert "\n" not in line, line
    assert len(line) < MOST_CHARACTERS, line
    for word in words:
        assert word in line, (word, line)


def flip_a_bit(path: Path) -> None:
    """Replace a file by one with a flipped bit in the middle; other hard links to the old file stay whole."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)


def write_sentences(folder: Path, name: str, rows: list[list[int]]) -> None:
    """Write sentences, each a list of token numbers, as fairseq's binarised data: NAME.bin and NAME.idx of a folder."""
    builder = MMapIndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=numpy.int32)
    for row in rows:
        builder.add_item(torch.tensor(row, dtype=torch.int32))
    builder.finalize(str(folder / f"{name}.idx"))
