"""Unpack archives into a folder, whole and with nothing outside it, or read them line by line without unpacking.

A member of an archive is a file, folder or link in it, with a path.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from posixpath import normpath

from ..errors import UserError
from ..files import whole
from .download import CHUNK
from .folder import need_space
from .lines import split_lines, writing

LONGEST_NAME = 255  # bytes that usual file systems allow for the name of a file or folder


def unpack(archive: Path, dest: Path, wanted: Callable[[str], bool]) -> None:
    """Unpack some files of a .tar.gz into the new folder `dest`, which appears whole or not at all.

    wanted: function that returns, for the path of a member, whether it is unpacked

    Raises a UserError if a wanted member would be written outside `dest`, is neither file nor folder (a link might lead
    outside), or has too long a name; if the archive is missing, broken or cut off; if a member is larger than what the
    disk has free; if nothing in it is wanted.
    """
    dest.parent.mkdir(parents=True, exist_ok=True)
    with (
        _reading(archive),
        tarfile.open(archive, "r:gz") as tar,
        whole(dest) as part,  # a temporary folder, which becomes `dest` at the end
        writing(dest),  # raises a UserError with this name if the disk is full
    ):
        part.mkdir()
        for member in tar:
            if member.isdir() or not wanted(normpath(member.name)):
                continue
            if not member.isreg():
                raise UserError(archive, f"{member.name!r} is no ordinary file; get the archive from a better place")
            need_space(part, member.size, str(archive))

            # Python 3.11.2 lacks tarfile's extraction filters (PEP 706), so names that lead outside are refused here.
            # normpath leaves ".." at the beginning of a path only.
            name = normpath(member.name).lstrip("/")
            leads_outside = name.split("/")[0] == ".."
            longest = max(len(component) for component in os.fsencode(name).split(b"/"))
            if leads_outside or longest > LONGEST_NAME:
                raise UserError(
                    archive,
                    f"{member.name[:60]!r} has a name that leads outside, or is too long; get a better archive",
                )

            (part / name).parent.mkdir(parents=True, exist_ok=True)
            with tar.extractfile(member) as body, open(part / name, "wb") as file:
                shutil.copyfileobj(body, file)

        if not any(part.iterdir()):
            raise UserError(archive, "holds none of the files wanted; remove it and fetch it again")
        # Read on to the end of the .gz, where Python compares its checksum, and raises an error if it differs.
        while tar.fileobj.read(CHUNK):
            pass


def stream_lines(archive: Path, member: str) -> Iterator[str]:
    """Yield the lines of one text in a .zip, .tar or .tar.gz, without their "\\n"; nothing is written to the disk.

    member: path of the text in the archive; in a .tar or .tar.gz, a text in a .gz is unpacked too

    Raises a UserError for a missing member, text that is not UTF-8, or a broken archive. The error may come after some
    lines, because the archive is read on the way.
    """
    with _reading(archive), _member(archive, member) as body:
        yield from split_lines(body, f"{archive}, {member}")


@contextmanager
def _member(archive: Path, name: str):
    """Open a member of an archive to read its bytes, unpacked if it is a .gz in a .tar or .tar.gz.

    name: path of the member

    A UserError is raised if a .tar or .tar.gz lacks it. A .zip that lacks it raises a KeyError, which _reading, around
    this context, turns into a UserError.
    """
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as content, content.open(name) as body:  # checks the member's CRC at its end
            yield body
        return

    with tarfile.open(archive) as tar:
        for member in tar:  # up to the first match: the rest of a large archive is not read
            if member.isreg() and normpath(member.name) == name:
                break
        else:
            raise UserError(archive, f"holds no {name}; name another member, or remove it and fetch it again")
        with tar.extractfile(member) as body:
            yield gzip.GzipFile(fileobj=body) if name.endswith(".gz") else body


@contextmanager
def _reading(archive: Path) -> Iterator[None]:
    """Turn any error in the context but a UserError into one about `archive`: it is missing, broken or no archive."""
    if not archive.is_file():
        raise UserError(archive, "is not there; fetch it first")
    try:
        yield
    except UserError:
        raise
    # besides errors of their own, tarfile and zipfile raise EOFError, zlib.error, OSError, ValueError, RuntimeError
    except Exception as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(archive, f"cannot be unpacked ({why}); remove it and fetch it again") from error
