"""Broken checkpoints: name -> what writes one to a path, given a sound one."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy
import torch

CANARY = "canary"  # in the folder of the program: made by whoever runs code of a file


class Call:
    """Unpickled, it calls."""

    def __init__(self, function, *words):
        self.function, self.words = function, words

    def __reduce__(self):
        return self.function, self.words


def weights(state: dict) -> str:
    """The name of the first matrix."""
    return next(name for name, value in state["model"].items() if value.dim() == 2)


def changed(change):
    """A writer of the sound state after change(state)."""

    def write(path: Path, sound: Path) -> None:
        state = torch.load(sound, weights_only=False)
        state = change(state) or state
        torch.save(state, path)

    return write


def with_weight(value):
    """value: tensor -> tensor, of one matrix; all that share its memory see it."""

    def change(state):
        name = weights(state)
        state["model"][name] = value(state["model"][name].clone())

    return changed(change)


def cut(share: float):
    """The first part of the file."""

    def write(path: Path, sound: Path) -> None:
        data = sound.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])

    return write


def flipped(at: bytes, offset: int = 0):
    """One byte is another, `offset` behind the first place where `at` stands."""

    def write(path: Path, sound: Path) -> None:
        data = bytearray(sound.read_bytes())
        place = data.index(at) + offset
        data[place] ^= 0xFF
        path.write_bytes(data)

    return write


def bytes_of(content: bytes):
    return lambda path, sound: path.write_bytes(content)


def modern(function, *words):
    """A zip archive of today whose pickle calls."""
    return changed(lambda state: state | {"extra_state": Call(function, *words)})


def legacy(function, *words, protocol: int = 2):
    """A bare pickle that calls."""
    return lambda path, sound: path.write_bytes(pickle.dumps({"model": {}, "x": Call(function, *words)}, protocol))


def in_legacy_format(path: Path, sound: Path) -> None:
    state = torch.load(sound, weights_only=False) | {"extra_state": Call(os.system, f"touch {CANARY}")}
    torch.save(state, path, _use_new_zipfile_serialization=False)


def numpy_object(path: Path, sound: Path) -> None:
    """An array of objects, one of which calls: what numpy's own list of plain data must not let through."""
    array = numpy.empty(1, dtype=object)
    array[0] = Call(os.system, f"touch {CANARY}")
    changed(lambda state: state | {"extra_state": {"best": array}})(path, sound)


def record_of(name: str, content: bytes | None):
    """The archive with one record replaced, or left out."""

    def write(path: Path, sound: Path) -> None:
        with zipfile.ZipFile(sound) as old, zipfile.ZipFile(path, "w") as new:
            for info in old.infolist():
                if not info.filename.endswith(f"/{name}"):
                    new.writestr(info, old.read(info))
                elif content is not None:
                    new.writestr(info, content)

    return write


def claiming(size: int):
    """A pickle whose string says that it is `size` bytes long."""
    stream = b"\x80\x04\x8d" + struct.pack("<Q", size) + b"x."
    return record_of("data.pkl", stream)


def declared_length(path: Path, sound: Path) -> None:
    """The archive's directory says that a record holds 2**40 bytes."""
    data = bytearray(sound.read_bytes())
    with zipfile.ZipFile(sound) as archive:
        last = archive.infolist()[-1]
    start = data.rindex(b"PK\x01\x02", 0, data.rindex(last.filename.encode()))
    data[start + 20 : start + 28] = struct.pack("<LL", 0xFFFFFFF0, 0xFFFFFFF0)
    path.write_bytes(data)


def huge_storage(path: Path, sound: Path) -> None:
    """A tensor of 2**58 numbers above a memory of eight."""
    tensor = torch.zeros(8)
    buffer = io.BytesIO()
    torch.save({"model": {"w": tensor.as_strided((8,), (1,))}}, buffer)
    data = buffer.getvalue()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename.endswith("data.pkl"):
                content = content.replace(b"K\x08\x85", b"\x8a\x08" + struct.pack("<q", 2**58) + b"\x85")
            new.writestr(info, content)


def numpy_memory(path: Path, sound: Path) -> None:
    """An array of 2**60 bytes, asked for by name."""
    changed(lambda state: state | {"extra_state": Call(numpy.ndarray, (2**57,), numpy.dtype("float64"))})(path, sound)
