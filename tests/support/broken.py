"""Files that are broken, or made to do harm: what changes sound checkpoints and sound binarised data."""

from __future__ import annotations

import io
import os
import pickle
import resource
import struct
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

LONGEST = 600  # characters of a line that explains; paths of tests are long
DEEP = b"[" * 100_000


def check_line(error: BaseException, *words: str) -> None:
    """One line with all of `words`."""
    line = str(error)
    assert "\n" not in line and len(line) < LONGEST, line
    for word in words:
        assert word in line, (word, line)


def contents(*places: Path) -> dict[str, bytes | str]:
    """Name -> content of every file below `places`; of what is no ordinary file its kind."""
    found = {}
    for path in (path for place in places for path in place.rglob("*")):
        if path.is_file() and not path.is_symlink():
            found[str(path)] = path.read_bytes()
        elif not path.is_dir():
            found[str(path)] = "special"
    return found


@contextmanager
def little_memory(more: int = 2 << 30):
    """At most so many bytes more than now: a file that claims to hold more than there is must not be believed."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class Call:
    """Unpickled, it calls."""

    def __init__(self, function, *words):
        self.function, self.words = function, words

    def __reduce__(self):
        return self.function, self.words


def changed(change):
    """A writer of the sound checkpoint after change(state); so are those below."""

    def write(path: Path, sound: Path) -> None:
        state = torch.load(sound, weights_only=False)
        torch.save(change(state) or state, path)

    return write


def holding(**values):
    return changed(lambda state: state | values)


def with_weight(value):
    """value: tensor -> tensor, of the first matrix."""

    def change(state):
        name = next(name for name, weight in state["model"].items() if weight.dim() == 2)
        state["model"][name] = value(state["model"][name].clone())

    return changed(change)


def calling(function, *words):
    """A zip archive of today whose pickle calls; "PROOF" is a file beside it."""
    return lambda path, sound: holding(extra_state=Call(function, *_beside(path, words)))(path, sound)


def bare_pickle(function, *words, protocol: int = 2):
    return lambda path, sound: path.write_bytes(
        pickle.dumps({"model": {}, "x": Call(function, *_beside(path, words))}, protocol)
    )


def in_legacy_format(path: Path, sound: Path) -> None:
    """Of torch before 1.6."""
    state = torch.load(sound, weights_only=False) | {"extra_state": Call(os.system, *_beside(path, ("touch PROOF",)))}
    torch.save(state, path, _use_new_zipfile_serialization=False)


def numpy_object(path: Path, sound: Path) -> None:
    """An array of objects, one of which calls: what numpy's own list of plain data must not let through."""
    array = numpy.empty(1, dtype=object)
    array[0] = Call(os.system, *_beside(path, ("touch PROOF",)))
    holding(extra_state={"best": array})(path, sound)


def _beside(path: Path, words: tuple) -> list:
    return [word.replace("PROOF", str(path.with_name("PROOF"))) for word in words]


def rewritten(change):
    """change: bytes -> bytes, of the whole file."""
    return lambda path, sound: path.write_bytes(change(sound.read_bytes()))


def flipped(at: bytes, offset: int):
    """A byte is another, `offset` behind the first place where `at` stands."""

    def change(data: bytes) -> bytes:
        place = data.index(at) + offset
        return data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]

    return rewritten(change)


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


def declared_length(path: Path, sound: Path) -> None:
    """The archive's directory says that a record holds 4 GiB."""
    data = bytearray(sound.read_bytes())
    with zipfile.ZipFile(sound) as archive:
        last = archive.infolist()[-1]
    start = data.rindex(b"PK\x01\x02", 0, data.rindex(last.filename.encode()))
    data[start + 20 : start + 28] = struct.pack("<LL", 0xFFFFFFF0, 0xFFFFFFF0)
    path.write_bytes(data)


def huge_storage(path: Path, sound: Path) -> None:
    """A tensor of 2**58 numbers above a memory of eight."""
    buffer = io.BytesIO()
    torch.save({"model": {"w": torch.zeros(8)}}, buffer)
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename.endswith("data.pkl"):
                content = content.replace(b"K\x08\x85", b"\x8a\x08" + struct.pack("<q", 2**58) + b"\x85")
            new.writestr(info, content)


def put(name: str, offset: int, content: bytes):
    """In a folder of binarised data, bytes of the file `name`."""
    return file_changed(name, lambda data: data[:offset] + content + data[offset + len(content) :])


def file_changed(name: str, change):
    """change: bytes -> bytes, of the file `name`."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def cut(name: str, share: float):
    return file_changed(name, lambda data: data[: int(len(data) * share)])


def sentences(name: str, *rows):
    """The data of `name` are these sentences, lists of tokens."""

    def write(folder: Path) -> None:
        builder = MMapIndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=numpy.int32)
        for row in rows:
            builder.add_item(torch.tensor(row, dtype=torch.int32))
        builder.finalize(str(folder / f"{name}.idx"))

    return write


def both_sides(change):
    """change: language -> what changes a folder."""
    return lambda folder: [change(lang)(folder) for lang in ("qaa", "qab")] and None


def instead(name: str, make):
    """make: path -> what stands where the file was."""

    def write(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return write
