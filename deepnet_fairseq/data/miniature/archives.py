"""Archives whose bytes depend on what is in them alone: no clock, no owner, members in order."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import PurePosixPath

EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest a zip can say


def tar_gz(members: dict[str, str]) -> bytes:
    """A gzipped tar of path -> text, with an entry for each folder on the way as the published archives have."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        folders = {str(folder) for path in members for folder in PurePosixPath(path).parents} - {"."}
        for path in sorted(folders | members.keys()):
            entry = tarfile.TarInfo(path)
            if path in folders:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
            else:
                content = members[path].encode()
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def zipped(members: dict[str, str]) -> bytes:
    """A zip of path -> text."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(members):
            archive.writestr(zipfile.ZipInfo(path, EPOCH), members[path], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def lines(sentences: list[str]) -> str:
    """One a line, the last one ended as well."""
    return "".join(f"{sentence}\n" for sentence in sentences)
