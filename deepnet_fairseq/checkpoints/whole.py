"""Is a checkpoint as it was written? torch stores a checksum for every tensor and does not look at it."""

from __future__ import annotations

import functools
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from ..errors import UserError

BEFORE_ZIP = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch < 1.6: a pickle, without checksums
UNREADABLE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, struct.error, ValueError, RuntimeError, IndexError)
# what else belongs to a checkpoint: each gets the path of a file that is whole and returns None or what is wrong
FURTHER_CHECKS: list[Callable[[Path], str | None]] = []


def check(path: str | Path) -> None:
    """UserError if the file is damaged."""
    if found := damage(path):
        raise UserError(f"{path}: truncated or damaged ({found}); take another checkpoint of the same folder")


def damage(path: str | Path) -> str | None:
    """What is wrong with the checkpoint at `path` in a few words, or None. Reads all of it, once until it changes."""
    path = Path(path)
    try:
        stat = os.stat(path)
    except OSError as error:
        return error.strerror
    found = _of_file(path, (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    return found or next(filter(None, (further(path) for further in FURTHER_CHECKS)), None)


@functools.lru_cache(maxsize=64)
def _of_file(path: Path, version: tuple) -> str | None:
    try:
        with open(path, "rb") as file:
            start = file.read(len(BEFORE_ZIP))
        if not start:
            return "it is empty"
        if start == BEFORE_ZIP:
            return None
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
    except UNREADABLE as error:
        return str(error).split("\n")[0] or type(error).__name__
    return f"the checksum of {wrong} is another" if wrong else None
