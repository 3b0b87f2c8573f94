"""Files that are broken, or made to do harm, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import numpy
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

LONGEST = 600  # characters of a line that explains; paths of tests are long
DEEP = b"[" * 100_000


class Call:
    """Unpickled, it calls."""

    def __init__(self, function, *words):
        self.function, self.words = function, words

    def __reduce__(self):
        return self.function, self.words


def check_line(error: BaseException, *words: str) -> None:
    """One line with all of `words`."""
    line = str(error)
    assert "\n" not in line and len(line) < LONGEST, line
    for word in words:
        assert word in line, (word, line)


def contents(folder: Path) -> dict[str, bytes]:
    """Name -> content of every file below."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sentences(name: str, *rows):
    """Changes a folder: the data of `name` are these sentences, lists of tokens."""

    def write(folder: Path) -> None:
        builder = MMapIndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=numpy.int32)
        for row in rows:
            builder.add_item(torch.tensor(row, dtype=torch.int32))
        builder.finalize(str(folder / f"{name}.idx"))

    return write
