"""Room on the disk, looked for before the work and missed during it."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

from ...errors import UserError
from .progress import amount, say


def need_space(folder: Path, needed: int, what: str) -> None:
    """UserError if `needed` bytes do not fit where `folder` is or will be."""
    if needed > (free := free_space(folder)):
        raise UserError(
            f"{what}: needs {amount(needed)}, {folder} has {amount(free)} free; free some or name another place"
        )


def free_space(folder: Path) -> int:
    """Bytes. The folder need not be there yet."""
    folder = folder.resolve()
    return shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free


@contextmanager
def writing(path: Path, then: str):
    """A disk that does not take what is written within is a UserError; `then`: the way out.

    Full, over quota, read-only: whatever the system says. Errors of requests and of broken archives have no errno and
    pass through.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise UserError(f"{path}: could not be written ({os.strerror(error.errno)}); {then}") from error


@contextmanager
def alone(folder: Path):
    """Within, no other process that asks for the same is at work in `folder`: it waits. A kill frees it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{folder}: another process fetches into it; waiting")
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: as before there were any
            pass
        yield
    finally:
        os.close(handle)
