"""Write checkpoints atomically: at any moment a checkpoint's name stands for a whole file, the old one or the new one.

fairseq tries up to three times to write into the same open file, so that a second try appends to the first; it never
calls fsync, and leaves unfinished files behind.
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

LAST = "checkpoint_last"
PREVIOUS = "checkpoint_previous"
UNFINISHED = ("checkpoint*.pt.*part", "weights*.pt.*part", "crash.pt.*part")  # temporary files of files.whole


class SaveError(UserError):
    """Raised when a checkpoint could not be written; a file that was there before is untouched.

    path: of the checkpoint; reason: the cause in words, as the function `reason` returns it.
    """

    def __init__(self, path: Path, error: BaseException):
        """Take the path of the checkpoint and the error that is the cause."""
        self.path = Path(path)
        self.reason = reason(error)
        super().__init__(f"{path}: could not be saved ({self.reason})")


def reason(error: BaseException | None) -> str:
    """Return why writing failed, in words.

    This is the operating system's message ("No space left on device"), which torch's error has as a cause, or else the
    first line of the error's own message.
    """
    for cause in causes(error):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return str(error).strip().split("\n")[0] or type(error).__name__


def save(content, path: str | Path) -> None:
    """Write `content` to the file `path` with torch.save, atomically; raise SaveError if it could not be written."""
    # torch is given an open file: where it opens one itself, its error does not say why that cannot be written
    with new_file(path) as part, open(part, "wb") as file:
        torch.save(content, file)


def copy(original, src_path: str, dst_path: str, overwrite: bool = False) -> str:
    """Give the checkpoint `src_path` the second name `dst_path`, by a hard link, and return `dst_path`.

    This replaces fairseq's PathManager.copy, which writes over checkpoint_last.pt and loses it if the run is killed
    meanwhile. A hard link does for a copy, since nothing writes into a checkpoint. original: fairseq's function, not
    called; overwrite: not read. Raises SaveError.
    """
    with new_file(dst_path) as part:
        _link(src_path, part)
    return dst_path


@contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """Yield the path of a temporary file beside `path`, and rename it to `path` at the end of the context.

    An existing checkpoint_last is kept as checkpoint_previous. The old files stay as they were if the context ends with
    an error or the process is killed. Raises SaveError if the file cannot be written.
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
    """Give an existing checkpoint_last the name checkpoint_previous too; do nothing for any other `path`."""
    path = Path(path)
    if not path.name.startswith(LAST) or not path.is_file():
        return
    previous = previous_of(path)
    if previous.exists() and previous.samefile(path):  # a run was killed after it had given this name
        return
    with whole(previous, follow=False) as part:
        _link(path, part)


def _link(source: str | Path, path: Path) -> None:
    """Make `path` a hard link to the file `source`, or a copy of it where there are no hard links."""
    try:
        os.link(source, path)
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, path)
        sync(path)


def previous_of(path: Path) -> Path:
    """Return DIR/checkpoint_previousX.pt for DIR/checkpoint_lastX.pt."""
    return path.with_name(path.name.replace(LAST, PREVIOUS, 1))


def sync(path: Path) -> None:
    """Wait (fsync) until a file's content, or a folder's list of names, is on the disk; raise OSError on failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files that killed runs have left in a folder; the caller must hold the folder's lock."""
    for pattern in UNFINISHED:
        for file in folder.glob(pattern):
            with suppress(OSError):
                file.unlink()
