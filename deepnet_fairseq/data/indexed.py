"""Write fairseq's binarised data, PREFIX.bin and PREFIX.idx, in memory that does not grow with the text.

PREFIX.bin holds the numbers of all pieces one after another; PREFIX.idx tells where each sentence begins in it.
"""

from __future__ import annotations

import shutil
import struct
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

BLOCK = 1 << 20  # lengths of sentences that are in memory at a time when the index is written


class IndexedWriter:
    """Context manager that writes fairseq's MMapIndexedDataset, byte by byte as fairseq-preprocess does.

    fairseq's own builder keeps the length of each sentence as a Python number until the end; here a file does.

    data, index: the files to write, PREFIX.bin and PREFIX.idx, which are complete at the end of the context
    dtype: NumPy type of the pieces' numbers in `data`
    sentences, pieces: how many have been added so far; the end-of-sentence symbols count as pieces
    """

    def __init__(self, data: Path, index: Path, dtype: type):
        self.data = data
        self.index = index
        self.dtype = dtype
        self.sentences = 0
        self.pieces = 0

    def __enter__(self) -> IndexedWriter:
        self._files = ExitStack()
        self._data = self._files.enter_context(open(self.data, "wb"))
        self._sizes = self._files.enter_context(TemporaryFile(dir=self.index.parent))
        return self

    def add(self, ids: np.ndarray, sizes: np.ndarray) -> None:
        """Append sentences.

        ids: numbers of the pieces of all these sentences, one after another, [pieces]
        sizes: pieces of each sentence, [sentences]
        """
        self._data.write(ids.astype(self.dtype, copy=False).tobytes())
        self._sizes.write(sizes.astype(np.int32, copy=False).tobytes())
        self.sentences += len(sizes)
        self.pieces += len(ids)

    def __exit__(self, kind, *_) -> None:
        with self._files:
            if kind is None:
                self._write_index()

    def _write_index(self) -> None:
        """Write the index: a header, the length of each sentence, and the byte in `data` where each begins.

        The format is that of fairseq's MMapIndexedDataset.Index.
        """
        from fairseq.data import indexed_dataset

        magic = indexed_dataset.MMapIndexedDataset.Index._HDR_MAGIC
        format_version = 1
        dtype_code = indexed_dataset._dtype_header_code(self.dtype)
        with open(self.index, "wb") as file:
            file.write(magic + struct.pack("<QBQ", format_version, dtype_code, self.sentences))
            self._sizes.seek(0)
            shutil.copyfileobj(self._sizes, file)

            pieces_before = 0  # in all earlier blocks
            self._sizes.seek(0)
            while content := self._sizes.read(BLOCK * np.dtype(np.int32).itemsize):
                sizes = np.frombuffer(content, np.int32)
                ends = pieces_before + np.cumsum(sizes, dtype=np.int64)
                starts = np.concatenate([[pieces_before], ends[:-1]])
                file.write((starts * np.dtype(self.dtype).itemsize).tobytes())
                pieces_before = int(ends[-1])
