"""Write fairseq's binarised data, PREFIX.bin and PREFIX.idx, in memory that does not grow with the text.

PREFIX.bin holds the numbers of all pieces one after another; PREFIX.idx, the index, tells where each sentence begins
in it. The format is that of fairseq's MMapIndexedDataset.
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
    """Context manager that writes fairseq's MMapIndexedDataset, the same bytes as fairseq-preprocess.

    fairseq's own builder keeps the lengths of all sentences in a Python list until the end, which may fill the memory;
    here they are kept in a temporary file.

    data: PREFIX.bin, to which `add` appends
    index: PREFIX.idx, which is written at the end of the context
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

    def __exit__(self, error_type, *_) -> None:
        with self._files:  # closes them
            if error_type is None:  # after an error the data are incomplete, and get no index
                self._write_index()

    def _write_index(self) -> None:
        """Write the index: a header, the length of each sentence, and the byte in `data` where each begins.

        The format is that of fairseq's MMapIndexedDataset.Index, where all numbers are little-endian: a magic string,
        the version of the format (8 bytes), the code of `dtype` (1), the number of sentences (8), the lengths of all
        sentences in pieces (4 each), and the places where they begin (8 each).
        """
        from fairseq.data import indexed_dataset

        magic = indexed_dataset.MMapIndexedDataset.Index._HDR_MAGIC
        format_version = 1
        dtype_code = indexed_dataset._dtype_header_code(self.dtype)
        with open(self.index, "wb") as file:
            file.write(magic + struct.pack("<QBQ", format_version, dtype_code, self.sentences))
            self._sizes.seek(0)
            shutil.copyfileobj(self._sizes, file)

            # The lengths are read again, BLOCK of them at a time, to add them up to the places.
            pieces_before = 0  # in all earlier blocks
            self._sizes.seek(0)
            while content := self._sizes.read(BLOCK * np.dtype(np.int32).itemsize):
                sizes = np.frombuffer(content, np.int32)
                ends = pieces_before + np.cumsum(sizes, dtype=np.int64)
                starts = np.concatenate([[pieces_before], ends[:-1]])
                file.write((starts * np.dtype(self.dtype).itemsize).tobytes())
                pieces_before = int(ends[-1])
