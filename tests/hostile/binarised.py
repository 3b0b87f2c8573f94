"""Broken binarised data: name -> what changes a folder of sound data. `data` there is qaa-qab, split train."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

INDEX, TOKENS = "train.qaa-qab.qaa.idx", "train.qaa-qab.qaa.bin"
CODE, COUNT, SIZES = 17, 18, 26  # offsets in an index: type of token, number of sentences, sizes
EOS = 2


def rewritten(name: str, change):
    """change: bytes -> bytes, of the file `name`."""

    def write(folder: Path) -> None:
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return write


def put(name: str, offset: int, content: bytes):
    return rewritten(name, lambda data: data[:offset] + content + data[offset + len(content) :])


def cut(name: str, share: float):
    return rewritten(name, lambda data: data[: int(len(data) * share)])


def sentences(name: str, *rows):
    """The data of `name` are these sentences, lists of tokens."""

    def write(folder: Path) -> None:
        import torch

        builder = MMapIndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=numpy.int32)
        for row in rows:
            builder.add_item(torch.tensor(row, dtype=torch.int32))
        builder.finalize(str(folder / f"{name}.idx"))

    return write


def every_side(split: str, *rows):
    def write(folder: Path) -> None:
        for lang in ("qaa", "qab"):
            sentences(f"{split}.qaa-qab.{lang}", *rows)(folder)

    return write


def dictionary(content: bytes):
    def write(folder: Path) -> None:
        for lang in ("qaa", "qab"):
            (folder / f"dict.{lang}.txt").write_bytes(content)

    return write


def packed(kind: str, *numbers) -> bytes:
    return struct.pack(f"<{len(numbers)}{kind}", *numbers)
