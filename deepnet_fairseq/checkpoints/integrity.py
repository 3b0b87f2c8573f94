"""Is a checkpoint as it was written? torch stores a checksum for every tensor and does not look at it."""

from __future__ import annotations

import functools
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

import torch

from ..errors import UserError

BEFORE_ZIP = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch < 1.6: a pickle, without checksums
UNREADABLE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, struct.error, ValueError, RuntimeError, IndexError)
HEADER = struct.Struct("<4s5H3L2H")  # in front of a member: magic number, ..., lengths of its name and of more
FOLDER = 0x10  # in the attributes of a member, of which torch then reads nothing
PIECE = 2**22  # bytes
# what else belongs to a checkpoint: each gets the path of a file that is whole and returns None or what is wrong
FURTHER_CHECKS: list[Callable[[Path], str | None]] = []


def check(path: str | Path) -> None:
    """UserError if an archive of torch's is damaged; what is none is for torch to read or refuse."""
    with open(path, "rb") as file:
        archive = file.read(2) == b"PK"
    if archive and (found := damage(path)):
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
            return None if start == BEFORE_ZIP else _of_archive(path, file)
    except UNREADABLE as error:
        return str(error).split("\n")[0] or type(error).__name__


def _of_archive(path: Path, file: IO[bytes]) -> str | None:
    """Every member where torch would read it: its checksum, and no other length than torch would take."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    reader = torch._C.PyTorchFileReader(str(path))
    names = {info.filename.partition("/")[2]: info for info in members}
    if len(names) < len(members) or names.keys() != set(reader.get_all_records()):
        return "its table of contents is broken"
    for name, info in names.items():
        if info.compress_type or info.compress_size != info.file_size or info.external_attr & FOLDER:
            return f"{name} is not stored as torch does"
        file.seek(info.header_offset)
        magic, *_, long, more = HEADER.unpack(file.read(HEADER.size))
        named, start = file.read(long), reader.get_record_offset(name)  # type: ignore[attr-defined]  # not in torch's stubs
        if (
            magic != b"PK\3\4"
            or named != info.orig_filename.encode()
            or start != info.header_offset + HEADER.size + long + more
        ):
            return f"the header of {name} is broken"
        file.seek(start)
        if _checksum(file, info.file_size) != info.CRC:
            return f"the checksum of {name} is another"
    return None


def _checksum(file: IO[bytes], size: int) -> int:
    found = 0
    while size > 0 and (piece := file.read(min(size, PIECE))):
        found, size = zlib.crc32(piece, found), size - len(piece)
    return found
