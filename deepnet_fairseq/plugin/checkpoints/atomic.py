"""A file takes its name when all of it is on the disk, and the one before stays until then.

fairseq's own way tries three times into the same open file, which spoils it, syncs nothing, and leaves what it could
not finish.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from ...errors import UserError, behind
from ...files import whole

LAST, PREVIOUS = "checkpoint_last", "checkpoint_previous"
LEFTOVERS = ("checkpoint*.pt.*part", "checkpoint*.pt.tmp", "crash.pt.*part", "crash.pt.tmp")  # .tmp: fairseq's own
most: dict[Path, int] = {}  # folder -> bytes that its checkpoints have taken at most
_cleaned: set[Path] = set()
_spoilt: set[Path] = set()


class SaveError(UserError):
    """A file that could not be written; path, reason: which, and why in a few words. The file before is untouched."""

    def __init__(self, path: Path, error: BaseException):
        self.path, self.reason = Path(path), reason(error)
        super().__init__(f"{path}: could not be saved ({self.reason})")


def reason(error: BaseException | None) -> str:
    """The system's word for it (No space left on device), which torch hides, or the first line of the message."""
    first = str(error).strip().split("\n")[0] or type(error).__name__
    said = (one.strerror for one in behind(error) if isinstance(one, OSError) and one.strerror)
    return next(said, first)


def save(content, path: str | Path) -> None:
    """torch.save into a new file; SaveError if it could not be written."""
    with new_file(path) as part, open(part, "wb") as file:  # torch would open it without telling why it cannot write
        torch.save(content, file)


def copy(source: str | Path, path: str | Path) -> None:
    """One file under another name too, for nothing writes into a checkpoint; SaveError if that could not be made."""
    with new_file(path) as part:
        _link(source, part)


@contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """Gives a neighbouring path to write to, which takes the name `path` if all went well.

    A checkpoint_last that is there is kept as checkpoint_previous. SaveError if the disk does not take it; then, and if
    the process is killed, the old files are there as they were.
    """
    path = Path(path)
    _clean(path.parent)
    try:
        with whole(path, follow=False) as part:
            yield part
            sync(part)
            most[path.parent] = max(most.get(path.parent, 0), size(path.parent))
            keep_previous(path)
        sync(path.parent)
    except (OSError, RuntimeError) as error:  # RuntimeError: torch's for a write that failed
        raise SaveError(path, error) from error
    _spoilt.discard(path)


def keep_previous(path: str | Path) -> None:
    """If `path` is a checkpoint_last that is there, the same file is called checkpoint_previous too; OSError."""
    path = Path(path)
    if not path.name.startswith(LAST) or path in _spoilt or not path.is_file():
        return
    previous = previous_of(path)
    if previous.exists() and previous.samefile(path):  # killed between the two names
        return
    with whole(previous, follow=False) as part:
        _link(path, part)


def size(folder: Path) -> int:
    """Bytes of its checkpoints, those that are being written too; one of two names counts once."""
    found = {}
    for file in folder.glob("*.pt*"):
        with suppress(OSError):  # gone meanwhile
            stat = file.stat()
            found[stat.st_ino] = stat.st_size
    return sum(found.values())


def _link(source: str | Path, path: Path) -> None:
    try:
        os.link(source, path)
    except OSError:  # a file system without links
        shutil.copyfile(source, path)
        sync(path)


def previous_of(path: Path) -> Path:
    """DIR/checkpoint_lastX.pt -> DIR/checkpoint_previousX.pt."""
    return path.with_name(path.name.replace(LAST, PREVIOUS, 1))


def spoilt(path: Path) -> None:
    """`path` was found damaged: its successor must not push the one before it out."""
    _spoilt.add(Path(path))


def sync(path: Path) -> None:
    """Returns when the file's content, or the names in the folder, are on the disk; OSError if they cannot be."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _clean(folder: Path) -> None:
    """Removes, once, what runs that were killed here have begun."""
    if folder in _cleaned:
        return
    _cleaned.add(folder)
    for leftover in (file for pattern in LEFTOVERS for file in folder.glob(pattern)):
        with suppress(OSError):
            leftover.unlink()
