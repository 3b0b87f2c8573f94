"""Verify checkpoints by their checksums, and choose the one to resume from: the last, or the newest that is whole.

torch stores a checksum for every tensor and never checks it.
"""

from __future__ import annotations

import functools
import logging
import re
import struct
import zipfile
import zlib
from pathlib import Path

import torch

from ...errors import UserError
from . import atomic

log = logging.getLogger(__name__)
DEFAULT = "checkpoint_last.pt"  # of --restore-file
RESUMABLE = r"checkpoint(?:_previous|\d+|_\d+_\d+|(_best|\.best_.+)){}\.pt"
UNREADABLE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, struct.error, ValueError, RuntimeError, IndexError)
FOLDER = 0x10  # in the attributes of a member, of which torch then reads nothing


def check(path: str | Path) -> None:
    """Raise a UserError if a zip archive of torch's is damaged; torch reads or refuses files of other formats."""
    with open(path, "rb") as file:
        is_zip = file.read(2) == b"PK"
    if is_zip and (found := damage(path)):
        raise UserError(f"{path}: truncated or damaged ({found}); take another checkpoint of the same folder")


def damage(path: str | Path) -> str | None:
    """Describe in a few words what is wrong with the checkpoint at `path`; None if it is whole.

    Reads the whole file, and remembers the answer until the file changes.
    """
    path = Path(path)
    try:
        stat = path.stat()
    except OSError as error:
        return error.strerror
    return _of_file(path, (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))


@functools.lru_cache(maxsize=64)
def _of_file(path: Path, version: tuple) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            return _of_archive(path, archive)
    except UNREADABLE as error:
        return str(error).split("\n")[0] or type(error).__name__


def _of_archive(path: Path, archive: zipfile.ZipFile) -> str | None:
    """Check that zipfile and torch read the same table of contents, and every member's header and checksum."""
    members = archive.infolist()
    names = {info.filename.partition("/")[2] for info in members}
    if len(names) < len(members) or names != set(torch._C.PyTorchFileReader(str(path)).get_all_records()):
        return "its table of contents is broken"
    for info in members:
        if info.compress_type or info.compress_size != info.file_size or info.external_attr & FOLDER:
            return f"{info.filename.partition('/')[2]} is not stored as torch does"
    broken = archive.testzip()
    return broken and f"the checksum of {broken.partition('/')[2]} is another"


def other_than_last(folder: Path, suffix: str) -> Path | None:
    """Return the checkpoint to resume from if it is not checkpoint_last; None to take that, or if there is none at all.

    suffix: of this process's files, mostly "". The log names the files passed over. Raises a UserError if checkpoints
    are there and none is whole.
    """
    last = folder / f"{atomic.LAST}{suffix}.pt"
    reason = damage(last) if last.is_file() else "missing"
    if reason is None:
        return None
    others = earlier(folder, suffix)
    if reason == "missing" and not others:
        return None
    said = f"{last}: missing" if reason == "missing" else f"{last}: truncated or damaged ({reason})"
    atomic.spoilt(last)
    for path in others:
        if found := damage(path):
            log.warning(f"{path}: truncated or damaged too ({found})")
        else:
            log.warning(f"{said}; resuming from {path}")
            return path
    raise UserError(
        f"{said}, and {folder} holds no other checkpoint that is whole; nothing was changed: put one there, name one "
        "by --restore-file, or start over with another --save-dir"
    )


def earlier(folder: Path, suffix: str) -> list[Path]:
    """List the folder's checkpoints except checkpoint_last, newest first, the best by validation at the end."""
    pattern = re.compile(RESUMABLE.format(re.escape(suffix)))
    found = {path: match for path in folder.glob("checkpoint*") if (match := pattern.fullmatch(path.name))}
    return sorted(found, key=lambda path: (found[path][1] is None, updates(path)), reverse=True)


def updates(path: Path) -> int:
    """Return the number of updates before a checkpoint, -1 if it cannot be read. Reads little of the file."""
    try:
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        return state["optimizer_history"][-1]["num_updates"]
    except Exception:  # of whatever a damaged file makes torch raise
        return -1
