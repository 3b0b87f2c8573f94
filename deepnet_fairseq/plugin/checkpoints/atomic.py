"""Write checkpoints so that a file of that name is whole at any moment: the old one, or the new one.

fairseq writes up to three times into the same open file, which spoils it, never calls fsync, and leaves unfinished
files behind.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from ...errors import UserError, causes
from ...files import whole

LAST, PREVIOUS = "checkpoint_last", "checkpoint_previous"
UNFINISHED = ("checkpoint*.pt.*part", "weights*.pt.*part", "crash.pt.*part")


class SaveError(UserError):
    """Raised when a file at `path` could not be written, for `reason`; the file that was there is untouched."""

    def __init__(self, path: Path, error: BaseException):
        self.path, self.reason = Path(path), reason(error)
        super().__init__(f"{path}: could not be saved ({self.reason})")


def reason(error: BaseException | None) -> str:
    """Return the system's reason (No space left on device), which torch hides, or else the message's first line."""
    first = str(error).strip().split("\n")[0] or type(error).__name__
    reasons = (one.strerror for one in causes(error) if isinstance(one, OSError) and one.strerror)
    return next(reasons, first)


def save(content, path: str | Path) -> None:
    """Call torch.save on a new file; raise SaveError if it could not be written."""
    with new_file(path) as part, open(part, "wb") as file:  # torch would open it without telling why it cannot write
        torch.save(content, file)


def copy(original, src_path: str, dst_path: str, overwrite: bool = False) -> str:
    """Give a checkpoint a second name by a hard link, since nothing writes into a checkpoint; SaveError on failure.

    fairseq copies over checkpoint_last.pt, which is lost if the run is killed meanwhile.
    """
    with new_file(dst_path) as part:
        _link(src_path, part)
    return dst_path


@contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; without an error the file written there then takes the name `path`.

    An existing checkpoint_last is kept as checkpoint_previous. Raises SaveError if the disk does not take the file;
    then, and if the process is killed, the old files stay as they were.
    """
    path = Path(path)
    try:
        with whole(path, follow=False) as part:
            yield part
            sync(part)
            keep_previous(path)
        sync(path.parent)
    except (OSError, RuntimeError) as error:  # RuntimeError: torch's for a write that failed
        raise SaveError(path, error) from error


def keep_previous(path: str | Path) -> None:
    """Link an existing checkpoint_last to the name checkpoint_previous too; leave any other `path` alone."""
    path = Path(path)
    if not path.name.startswith(LAST) or not path.is_file():
        return
    previous = previous_of(path)
    if previous.exists() and previous.samefile(path):  # killed between the two names
        return
    with whole(previous, follow=False) as part:
        _link(path, part)


def _link(source: str | Path, path: Path) -> None:
    try:
        os.link(source, path)
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, path)
        sync(path)


def previous_of(path: Path) -> Path:
    """Return DIR/checkpoint_previousX.pt for DIR/checkpoint_lastX.pt."""
    return path.with_name(path.name.replace(LAST, PREVIOUS, 1))


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk; raise OSError if it cannot be."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_unfinished(folder: Path) -> None:
    """Remove the unfinished files of runs that were killed in this folder; the caller holds its lock."""
    for pattern in UNFINISHED:
        for file in folder.glob(pattern):
            with suppress(OSError):
                file.unlink()
