"""Write checkpoints atomically: at any moment a checkpoint's name stands for a whole file, the old one or the new one.

fairseq tries up to three times to write into the same open file, so that a second try appends to the first; it never
calls fsync, and leaves unfinished files behind.

X in a file name stands for --checkpoint-suffix, which is empty without the flag.
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

LAST = "checkpoint_last"  # how fairseq's name of the newest checkpoint begins
PREVIOUS = "checkpoint_previous"  # how our name of the one before it begins
UNFINISHED = ("checkpoint*.pt.*part", "weights*.pt.*part", "crash.pt.*part")  # temporary files of files.whole


class SaveError(UserError):
    """Raised when a checkpoint could not be written; a file that was there before is untouched.

    path: of the checkpoint; reason: why it could not be written, in words.
    """

    def __init__(self, path: Path, error: BaseException):
        """Take the path of the checkpoint and the error that writing it has raised."""
        self.path = Path(path)
        self.reason = reason_in_words(error)
        super().__init__(f"{path}: could not be saved ({self.reason})")


def reason_in_words(error: BaseException) -> str:
    """Return why writing failed, by the error that it has raised.

    The reason is the operating system's message, such as "No space left on device", if the error is an OSError or was
    caused by one, as torch's errors are where it writes into an open file; else the first line of the error's message,
    or its type if it has no message.
    """
    for cause in causes(error):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return str(error).strip().split("\n")[0] or type(error).__name__


def save(content, path: str | Path) -> None:
    """Write `content` to the file `path` with torch.save, atomically; raise SaveError if it could not be written."""
    # torch is given an open file: if torch opens the file itself, its error does not tell why it could not be written
    with new_file(path) as part, open(part, "wb") as file:
        torch.save(content, file)


def copy(original, src_path: str, dst_path: str, overwrite: bool = False) -> str:
    """Give the checkpoint `src_path` the second name `dst_path`, by a hard link if possible, and return `dst_path`.

    This replaces fairseq's PathManager.copy, which writes over checkpoint_last.pt and loses it if the run is killed
    meanwhile. A hard link is as good as a copy, because nothing writes into a checkpoint. original: fairseq's function,
    which is not called; overwrite: fairseq's argument, not read: an existing file is replaced in any case. Raises
    SaveError if neither a link nor a copy can be made.
    """
    with new_file(dst_path) as part:
        _link(src_path, part)
    return dst_path


@contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """Yield the path of a temporary file beside `path`, and rename it to `path` at the end of the context.

    An existing checkpoint_last that is replaced is kept as checkpoint_previous. The old files stay as they were if the
    context ends with an error or the process is killed. Raises SaveError if the file cannot be written.
    """
    path = Path(path)
    try:
        with whole(path, follow=False) as part:  # replaces `path` by `part` at its end
            yield part
            sync(part)  # before it gets its name, which must never stand for an unfinished file
            keep_previous(path)
        sync(path.parent)  # the new name
    except (OSError, RuntimeError) as error:  # RuntimeError: torch's for a write that failed
        raise SaveError(path, error) from error


def keep_previous(path: str | Path) -> None:
    """Give an existing checkpoint_last the second name checkpoint_previous; do nothing for any other `path`."""
    path = Path(path)
    if not path.name.startswith(LAST) or not path.is_file():
        return
    previous = previous_of(path)
    if previous.exists() and previous.samefile(path):  # a run was killed just after this function
        return
    with whole(previous, follow=False) as part:
        _link(path, part)


def _link(source: str | Path, path: Path) -> None:
    """Make `path` a hard link to the file `source`, or a copy of it where there are no hard links."""
    try:
        os.link(source, path)
    except OSError:  # from a file system without hard links
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
    """Remove the temporary files that killed runs have left in a folder.

    The caller must hold the folder's lock (lock.py): a file of a run that goes on would be removed too.
    """
    for pattern in UNFINISHED:
        for file in folder.glob(pattern):
            with suppress(OSError):
                file.unlink()
