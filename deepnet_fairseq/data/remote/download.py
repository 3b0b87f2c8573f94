"""Files over HTTP into a folder: each under its name whole and verified, or not at all.

What has come so far lies in NAME.part and is gone on with by the next call; .NAME.json beside it remembers the server's
validator and, later, the checksum. SHA256SUMS holds the checksums of files for which no one published any.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

import requests

from ...errors import UserError
from . import mirror as mirrors
from .answer import content_length
from .digest import difference, digest
from .disk import alone, need_space, writing
from .patience import Interrupted, Unavailable
from .progress import progress
from .source import RemoteFile
from .sums import NAME, record_sum, recorded_sums
from .transfer import RESUMED, Transfer, WrongContent


def fetch(file: RemoteFile, folder: Path, mirror: str | None = None) -> Path:
    """FOLDER/NAME, fetched unless it is there. See fetch_all."""
    return fetch_all([file], folder, mirror)[file.name]


def fetch_all(files: Iterable[RemoteFile], folder: Path, mirror: str | None = None) -> dict[str, Path]:
    """Name -> path in `folder`, which is made. Files that are there and verified cost no request.

    mirror: http://HOST:PORT/PREFIX, see mirror.py; by default the environment's DEEPNET_MIRROR; asked for SHA256SUMS
    UserError: a file that is there is another; the disk has no room; no address gives a file
    """
    files, folder = list(files), Path(folder)
    if len({file.name for file in files}) < len(files):
        raise UserError(f"{folder}: two of the files to fetch have one name; name each once")
    with writing(folder, "name another place"):
        folder.mkdir(parents=True, exist_ok=True)
    with alone(folder), requests.Session() as session:
        if found := mirrors.find_mirror(mirror, session):
            files = [found.copy_of(file) for file in files]
        sums = recorded_sums(folder)
        files = [_as_recorded(file, sums, folder) for file in files]
        missing = [file for file in files if not _is_there(file, folder)]
        if missing:
            what = missing[0].name if len(missing) == 1 else f"{len(missing)} files"
            need_space(folder, _bytes_to_come(missing, folder, session), what)
        for file in missing:
            _download(file, folder, session)
    return {file.name: folder / file.name for file in files}


def _as_recorded(file: RemoteFile, sums: dict[str, str], folder: Path) -> RemoteFile:
    """With the checksum of its first download, where no one else has one."""
    if file.checksum or file.name not in sums:
        return file
    return dataclasses.replace(file, checksum=f"sha256:{sums[file.name]}", origin=str(folder / NAME))


def _is_there(file: RemoteFile, folder: Path) -> bool:
    path = folder / file.name
    if not path.exists():
        return False
    if not path.is_file():
        raise UserError(f"{path}: is no ordinary file; remove it, or name another folder")
    if found := difference(path, file):
        raise UserError(f"{path}: is not the file meant, {found}; remove it to fetch it again, or name another folder")
    _record(file, folder)
    return True


def _record(file: RemoteFile, folder: Path) -> None:
    if not file.checksum:
        with writing(folder / NAME, "make the folder writable"):
            record_sum(folder, file.name, digest(folder / file.name))


def _bytes_to_come(missing: list[RemoteFile], folder: Path, session: requests.Session) -> int:
    """What is to be written yet, as far as recipes and servers say."""
    total, servers = 0, True
    for file in missing:
        size = file.size
        if size is None and servers:
            try:
                size = content_length(session, file.urls[0])
            except Interrupted:  # the download will wait for it, and say so; here one such wait is enough
                servers = False
        part = folder / f"{file.name}.part"
        total += max(0, (size or 0) - (part.stat().st_size if part.exists() else 0))
    return total


def _download(file: RemoteFile, folder: Path, session: requests.Session) -> None:
    """From the first address that gives the file; one that gave something else is asked once more, from scratch."""
    path, part = folder / file.name, folder / f"{file.name}.part"
    reasons: dict[str, str] = {}
    addresses = list(file.urls)
    with progress(file.name, file.size, part.stat().st_size if part.exists() else 0) as bar:
        transfer = Transfer(file, part, session, bar)
        for url in addresses:
            try:
                transfer.take_from(url)
                break
            except WrongContent as error:
                if url not in reasons:
                    addresses.append(url)
                reasons[url] = str(error)
            except Unavailable as error:
                reasons[url] = str(error)
        else:
            tried = "; ".join(f"{url}: {reason}" for url, reason in reasons.items())
            raise UserError(
                f"{file.name}: no address gives it ({tried}); download it by hand into {folder} under this name, "
                f"or set a mirror ({mirrors.VARIABLE})"
            )
    with writing(path, RESUMED):
        os.replace(part, path)
    _record(file, folder)
