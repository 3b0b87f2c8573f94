"""Checksums of files, remembered beside them: 2 GB are not read again at each call."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from ...atomic_output import whole
from ...json_text import parse
from .source import RemoteFile


def note_of(path: Path) -> Path:
    """.NAME.json, which holds what is known of NAME and of NAME.part."""
    return path.with_name(f".{path.name.removesuffix('.part')}.json")


def read_note(path: Path) -> dict:
    """What is known of a file; {} if nothing is, or the note is torn."""
    with suppress(OSError, ValueError):
        note = parse(note_of(path).read_text())
        return note if isinstance(note, dict) else {}
    return {}


def write_note(path: Path, **facts) -> None:
    """Whole. In a folder that cannot be written to nothing is remembered, which only costs time."""
    with suppress(OSError), whole(note_of(path)) as part:
        part.write_text(json.dumps(facts))


def digest(path: Path, algorithm: str = "sha256") -> str:
    """HEX by a name of hashlib; read from the file only if its size or time of change is another than before."""
    stat = path.stat()
    same = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    note = read_note(path)
    if algorithm not in note or not same.items() <= note.items():
        hashes = {name: hashlib.new(name, usedforsecurity=False) for name in ("sha256", algorithm)}
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                for each in hashes.values():
                    each.update(chunk)
        note = same | {name: each.hexdigest() for name, each in hashes.items()}
        write_note(path, **note)
    return note[algorithm]


def difference(path: Path, file: RemoteFile) -> str | None:
    """What `path` has instead of what `file` must have, or None."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"{size:,} bytes instead of {file.size:,}"
    if not file.checksum:
        return None
    algorithm, expected = file.checksum.lower().split(":")
    found = digest(path, algorithm)
    if found != expected:
        return f"{algorithm} {found} instead of {expected}" + (f" ({file.origin})" if file.origin else "")
    return None
