"""What lies in an archive, one after another, whatever its format.

tarfile takes an archive that breaks off between two members, or in a header, for one that ends there; `_Header` does
not. Its own extraction is not used: filter="data" quietly strips setuid bits and the slash of absolute paths, which are
refused here, and had ways around it until Python 3.11.13 (CVE-2025-4517).
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ...errors import UserError

COMPRESSIONS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
SHORT = {".tgz": ".tar.gz", ".tbz2": ".tar.bz2", ".txz": ".tar.xz"}
KNOWN = "known are .tar, .tar.gz, .tgz, .tar.bz2, .tar.xz, .zip, .gz, .bz2 and .xz"
BLOCK = 1 << 20


@dataclass(frozen=True)
class Member:
    """name: as in the archive; kind: file, folder, symlink, hardlink or special; size: bytes, None if untold."""

    name: str
    kind: str
    size: int | None
    mode: int
    target: str
    open: Callable[[], BinaryIO]


@contextmanager
def members_of(archive: Path):
    """(members, raw): the members, each to be read before the next is asked for, and the archive's own open file.

    Of a .zip the members are a list. UserError, here or while they are read: no archive, broken, or ends too soon.
    """
    if not archive.is_file():
        raise UserError(f"{archive}: is not there; fetch it first")
    if not archive.stat().st_size:  # which gzip and bz2 read as a file without bytes
        raise UserError(f"{archive}: is empty; remove it and fetch it again")
    name = archive.name
    for short, long in SHORT.items():
        name = name.removesuffix(short) + long if name.endswith(short) else name
    with open(archive, "rb") as raw, ExitStack() as stack:
        with broken(archive):
            members = _read(archive, name, raw, stack)
        yield members if isinstance(members, list) else _guarded(members, archive), raw


def _read(archive: Path, name: str, raw: BinaryIO, stack: ExitStack) -> Iterable[Member]:
    stem, ending = Path(name).stem, Path(name).suffix
    if ending == ".zip":
        content = stack.enter_context(zipfile.ZipFile(raw))
        return [_of_zip(archive, content, info) for info in content.infolist()]
    if ending == ".tar":
        return _of_tar(archive, raw)
    if ending not in COMPRESSIONS:
        raise UserError(f"{archive}: is no archive by its name; {KNOWN}")
    content = stack.enter_context(COMPRESSIONS[ending](raw))
    if stem.endswith(".tar"):
        return _of_tar(archive, content)
    return [Member(stem, "file", None, 0o644, "", lambda: Body(archive, lambda: content))]


@contextmanager
def broken(archive: Path):
    """Whatever the readers say of an archive that is none, broken or too short, as a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # besides their own they raise EOFError, zlib.error, OSError, ValueError, RuntimeError
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{archive}: cannot be unpacked ({why}); remove it and fetch it again") from error


def _guarded(members: Iterator[Member], archive: Path) -> Iterator[Member]:
    while True:
        with broken(archive):
            member = next(members, None)
        if member is None:
            return
        yield member


class Body(io.RawIOBase):
    """The bytes of a member, unpacked; UserError where the archive breaks."""

    def __init__(self, archive: Path, opener: Callable[[], BinaryIO]):
        self.archive = archive
        with broken(archive):
            self.stream = opener()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        with broken(self.archive):
            chunk = self.stream.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)


class _Header(tarfile.TarInfo):
    """Only a block of zeros ends an archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile):
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # of no __all__
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(
                f"{error} at byte {archive.offset:,}, where a header or the end should be"
            ) from error


def _of_tar(archive: Path, content: BinaryIO) -> Iterator[Member]:
    with tarfile.open(fileobj=content, mode="r:", tarinfo=_Header) as tar:
        for info in tar:
            kinds = {"file": info.isreg(), "folder": info.isdir(), "symlink": info.issym(), "hardlink": info.islnk()}
            kind = next((kind for kind, holds in kinds.items() if holds), "special")
            opener = lambda info=info: tar.extractfile(info)  # noqa: E731
            size = info.size if info.isreg() else 0
            yield Member(info.name, kind, size, info.mode, info.linkname, lambda opener=opener: Body(archive, opener))
    while content.read(BLOCK):  # on to the checksum of the compression
        pass


def _of_zip(archive: Path, content: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    mode = info.external_attr >> 16
    kinds = {0: "file", stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "symlink"}
    kind = "folder" if info.is_dir() else kinds.get(stat.S_IFMT(mode), "special")
    target = ""
    if kind == "symlink":
        with content.open(info) as stream:
            target = stream.read(4096).decode()
    body = lambda: Body(archive, lambda: content.open(info))  # noqa: E731
    return Member(info.filename, kind, info.file_size, stat.S_IMODE(mode), target, body)
