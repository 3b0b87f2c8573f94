"""Damaged and malicious files, and checks of the error messages about them."""

from __future__ import annotations

from pathlib import Path

import numpy
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

LONGEST = 600  # characters of an error's line; paths in tests are long
DEEP = b"[" * 100_000


class Call:
    """Object whose unpickling calls a function."""

    def __init__(self, function, *words):
        self.function = function
        self.words = words

    def __reduce__(self):
        return self.function, self.words


def check_line(error: BaseException, *words: str) -> None:
    """Check that an error is one short line that contains all of `words`."""
    line = str(error)
    assert "\n" not in line, line
    assert len(line) < LONGEST, line
    for word in words:
        assert word in line, (word, line)


def flip_a_bit(path: Path) -> None:
    """Damage a file in the middle, but no other name of the same file (a hard link)."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of every file in a folder, by path."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_sentences(folder: Path, name: str, rows: list[list[int]]) -> None:
    """Write sentences, lists of tokens, as the binarised data NAME.bin and NAME.idx of a folder."""
    builder = MMapIndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=numpy.int32)
    for row in rows:
        builder.add_item(torch.tensor(row, dtype=torch.int32))
    builder.finalize(str(folder / f"{name}.idx"))
