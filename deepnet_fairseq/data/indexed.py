"""Write fairseq's binarised data, PREFIX.bin and PREFIX.idx, in memory that does not grow with the text."""

from __future__ import annotations

import shutil
import struct
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

BLOCK = 1 << 20  # sizes that are in memory at a time


class IndexedWriter:
    """Context in which sentences are added to an MMapIndexedDataset, whose files are those of fairseq-preprocess.

    fairseq's own builder keeps the size of each sentence as a Python number until the end; here they wait in a file.

    data, index: the files to write, PREFIX.bin and PREFIX.idx, which are complete at the end of the context
    dtype: of the pieces' numbers
    """

    def __init__(self, data: Path, index: Path, dtype: type):
        self.data = data
        self.index = index
        self.dtype = dtype
        self.sentences = 0
        self.pieces = 0  # with the ends of sentences

    def __enter__(self) -> IndexedWriter:
        self._files = ExitStack()
        self._data = self._files.enter_context(open(self.data, "wb"))
        self._sizes = self._files.enter_context(TemporaryFile(dir=self.index.parent))
        return self

    def add(self, ids: np.ndarray, sizes: np.ndarray) -> None:
        """Append sentences; ids: the numbers of all their pieces, [pieces]; sizes: pieces of each, [sentences]."""
        self._data.write(ids.astype(self.dtype, copy=False).tobytes())
        self._sizes.write(sizes.astype(np.int32, copy=False).tobytes())
        self.sentences += len(sizes)
        self.pieces += len(ids)

    def __exit__(self, kind, *_) -> None:
        with self._files:
            if kind is None:
                self._write_index()

    def _write_index(self) -> None:
        """Write the index: a header, the size of each sentence, and the byte in `data` where each begins."""
        from fairseq.data import indexed_dataset

        magic = indexed_dataset.MMapIndexedDataset.Index._HDR_MAGIC
        code = indexed_dataset._dtype_header_code(self.dtype)
        with open(self.index, "wb") as file:
            file.write(magic + struct.pack("<QBQ", 1, code, self.sentences))
            self._sizes.seek(0)
            shutil.copyfileobj(self._sizes, file)

            place = 0  # pieces before the sentence
            self._sizes.seek(0)
            while content := self._sizes.read(BLOCK * np.dtype(np.int32).itemsize):
                ends = place + np.cumsum(np.frombuffer(content, np.int32), dtype=np.int64)
                starts = np.concatenate([[place], ends[:-1]])
                file.write((starts * np.dtype(self.dtype).itemsize).tobytes())
                place = int(ends[-1])
