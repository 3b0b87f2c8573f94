"""Files over HTTP into a folder: each under its name whole and verified, or not at all.

What has come so far lies in NAME.part and is gone on with by the next call; .NAME.etag beside it tells two versions of
a file without a published checksum apart. SHA256SUMS holds the checksums of such files, as they first came.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests
from filelock import FileLock, Timeout
from tqdm import tqdm
from urllib3.exceptions import HTTPError, ProtocolError

from .. import __version__
from ..errors import UserError
from ..files import whole
from .lines import writing

SUMS = "SHA256SUMS"  # lines `HEX  NAME`, as sha256sum writes and checks them
HEADERS = {"User-Agent": f"deepnet_fairseq/{__version__}", "Accept-Encoding": "identity"}  # the bytes as they lie there
BUSY = (408, 425, 429, 500, 502, 503, 504)
ATTEMPTS = 6  # in a row in vain
WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds before the second attempt, doubled before each later one
TIMEOUT = (15.0, 60.0)  # seconds to connect, and without a byte
CHUNK = 1 << 18
RESUMED = "free some space or mend it, then run this again: it goes on where it stopped"


@dataclass(frozen=True)
class RemoteFile:
    """One file to fetch.

    name: what it is called once it is here, no path
    urls: http or https, tried in this order, the official one first
    size: bytes, None if unknown
    checksum: "sha256:HEX" or "md5:HEX", None if no one trustworthy published one
    origin: who published the checksum
    """

    name: str
    urls: tuple[str, ...]
    size: int | None = None
    checksum: str | None = None
    origin: str = ""


def at(*addresses: str, http: bool = False, **facts) -> RemoteFile:
    """A file named as at its addresses (without https://); http: it may also be had without encryption."""
    schemes = ("https", "http") if http else ("https",)
    urls = tuple(f"{scheme}://{address}" for scheme in schemes for address in addresses)
    return RemoteFile(addresses[0].rpartition("/")[2], urls, **facts)


Fetch = Callable[[Iterable[RemoteFile], Path], dict[str, Path]]  # fetch_all, or what stands in for it


class Unavailable(Exception):
    """An address does not give the file; says why."""


def fetch_all(files: Iterable[RemoteFile], folder: Path) -> dict[str, Path]:
    """Name -> path in `folder`, which is made. Files that are there and verified cost no request.

    UserError: a file that is there is another; the disk has no room; no address gives a file.
    """
    files = list(files)
    with writing(folder, "name another place"):
        folder.mkdir(parents=True, exist_ok=True)
    if missing := [file for file in files if not _is_there(file, folder)]:
        with locked(folder / ".lock"), requests.Session() as session:
            session.headers.update(HEADERS)
            lacking = (max(0, (file.size or 0) - _size(folder / f"{file.name}.part")) for file in missing)
            need_space(folder, sum(lacking), "the download")
            for file in missing:
                if not _is_there(file, folder):  # fetched by another process meanwhile
                    _download(file, folder, session)
    sums = recorded_sums(folder)
    if new := [file.name for file in files if not file.checksum and file.name not in sums]:
        sums |= {name: digest(folder / name) for name in new}
        with writing(folder / SUMS, "make the folder writable"), whole(folder / SUMS) as part:
            part.write_text("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)), encoding="utf-8")
    return {file.name: folder / file.name for file in files}


def described(files: Iterable[RemoteFile], folder: Path, fetch: Fetch) -> dict[str, dict]:
    """fetch_all; name -> {"sha256", "size" in bytes, "url"}."""
    files = list(files)
    paths = fetch(files, folder)
    return {
        file.name: {"sha256": digest(path), "size": path.stat().st_size, "url": file.urls[0]}
        for file, path in zip(files, paths.values(), strict=True)
    }


def _is_there(file: RemoteFile, folder: Path) -> bool:
    path = folder / file.name
    if not path.exists():
        return False
    if found := _difference(path, file):
        raise UserError(f"{path}: is not the file meant, {found}; remove it to fetch it again, or name another folder")
    return True


def _difference(path: Path, file: RemoteFile) -> str | None:
    """What `path` has instead of what `file` must have by its publisher or its first download, or None."""
    if not path.is_file():
        return "no ordinary file"
    if file.size not in (None, _size(path)):
        return f"{_size(path):,} bytes instead of {file.size:,}"
    checksum, origin = file.checksum, file.origin
    if not checksum and (first_sum := recorded_sums(path.parent).get(file.name)):
        checksum, origin = f"sha256:{first_sum}", f"{path.parent / SUMS}, from which its line may be removed"
    algorithm, _, expected = (checksum or "").partition(":")
    if algorithm and (found := digest(path, algorithm)) == expected:
        return None
    with open(path, "rb") as content:
        start = content.read(1000).lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "a web page instead of the file"
    return f"{algorithm} {found} instead of {expected} ({origin})" if algorithm else _broken(path, file.name)


def _broken(path: Path, name: str) -> str | None:
    """Read an archive to its end, before its checksum is recorded, and return what is wrong with it, or None."""
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                return (member := archive.testzip()) and f"broken at {member!r}"
        if name.endswith((".gz", ".tgz")):
            with gzip.open(path) as unpacked:
                while unpacked.read(CHUNK):
                    pass
    except Exception as error:  # besides their own they raise EOFError, zlib.error, OSError, RuntimeError
        return f"no archive that unpacks ({error})"
    return None


def _download(file: RemoteFile, folder: Path, session: requests.Session) -> None:
    """From the first address that gives the file."""
    part, reasons = folder / f"{file.name}.part", []
    for url in file.urls:
        try:
            resumed = _size(part)
            _receive(file, url, part, session)
            if (found := _difference(part, file)) and resumed:  # it began as something else
                part.unlink()
                _receive(file, url, part, session)
                found = _difference(part, file)
            if not found:
                with writing(part, RESUMED):
                    os.replace(part, folder / file.name)
                    _etag(part).unlink(missing_ok=True)
                return
            part.unlink()
        except Unavailable as error:
            found = str(error)
        reasons.append(f"{url}: {found}")
    raise UserError(
        f"{file.name}: no address gives it ({'; '.join(reasons)}); download it by hand into {folder} under this name"
    )


def _receive(file: RemoteFile, url: str, part: Path, session: requests.Session) -> None:
    """All of it into `part`; Unavailable if an interruption comes again and again without a byte more."""
    most, vain = _size(part), 0
    every = 0.1 if sys.stderr.isatty() else 30.0  # seconds between two states of the bar
    with tqdm(desc=file.name, total=file.size, unit="B", unit_scale=True, mininterval=every, file=sys.stderr) as bar:
        while True:
            try:
                return _request(file, url, part, session, bar)
            except UserError:
                raise
            except (ValueError, requests.TooManyRedirects) as error:  # an address that is none, or a way to one
                raise Unavailable(f"no address ({_reason(error)})") from error
            except (requests.RequestException, HTTPError) as error:
                why = _reason(error)
            vain = 0 if _size(part) > most else vain + 1
            most = max(most, _size(part))
            if vain == ATTEMPTS:
                raise Unavailable(f"{why}, {vain} times in a row")
            say(f"{file.name}: {why}; goes on")
            time.sleep(min(WAIT * 2 ** max(vain - 1, 0), LONGEST_WAIT))


def _request(file: RemoteFile, url: str, part: Path, session: requests.Session, bar: tqdm) -> None:
    """One request for what `part` lacks; Unavailable, or HTTPError where asking again may help."""
    start, tag = _size(part), _etag(part).read_text() if _etag(part).exists() else ""
    if start and start == file.size:
        return
    if (file.size is not None and start > file.size) or not (file.checksum or tag):
        start = 0
    headers = ({"Range": f"bytes={start}-"} | ({"If-Range": tag} if tag else {})) if start else {}
    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        content_range, now = response.headers.get("Content-Range", ""), response.headers.get("ETag", "")
        if response.status_code == 416 and content_range == f"bytes */{start}":
            return  # killed between the last byte and the name
        fits = content_range.startswith(f"bytes {start}-") and now in ("", tag or now)
        if response.status_code == 416 or response.status_code == 206 and not fits:
            part.unlink(missing_ok=True)
            raise ProtocolError("has no rest that fits what is here")
        if response.status_code in BUSY:
            raise ProtocolError(f"{response.status_code} {response.reason}")
        if response.status_code not in (200, 206):
            raise Unavailable(f"{response.status_code} {response.reason}")
        if response.status_code == 200:
            start = 0
            _etag(part).write_text(now or response.headers.get("Last-Modified", ""))
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else file.size
        if None not in (total, file.size) and total != file.size:
            raise Unavailable(f"{total:,} bytes instead of {file.size:,}")
        need_space(part.parent, (total or 0) - start, file.name)
        bar.total = total
        bar.update(start - bar.n)
        with writing(part, RESUMED), open(part, "ab" if start else "wb") as out:
            while chunk := response.raw.read1(CHUNK):  # what is there: nothing waits for a full buffer
                out.write(chunk)
                bar.update(len(chunk))
        if total is not None and _size(part) < total:
            raise ProtocolError(f"ends after {_size(part):,} of {total:,} bytes")


def _etag(part: Path) -> Path:
    """Where the server's validator of what is in `part` lies."""
    return part.with_name(f".{part.stem}.etag")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: BaseException) -> str:
    """The innermost of what requests and urllib3 wrap several times: [Errno 104] Connection reset by peer."""
    while inner := [arg for arg in (getattr(error, "reason", None), *error.args) if isinstance(arg, BaseException)]:
        error = inner[-1]
    return str(error).rpartition(": ")[2] or type(error).__name__


def digest(path: Path, algorithm: str = "sha256") -> str:
    """HEX of a file by a name of hashlib."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def recorded_sums(folder: Path) -> dict[str, str]:
    """Name -> HEX of FOLDER/SHA256SUMS, {} without one; UserError naming the line that is none."""
    path, sums = folder / SUMS, {}
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for number, line in enumerate(text.splitlines(), 1):
        if not (match := re.fullmatch(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)", line)):
            raise UserError(f"{path}, line {number}: is not `SHA256  NAME`; write the file anew with sha256sum")
        sums[match[2]] = match[1].lower()
    return sums


def need_space(folder: Path, needed: int, what: str) -> None:
    """UserError if `needed` bytes do not fit where `folder` is or will be."""
    there = next(place for place in (folder.resolve(), *folder.resolve().parents) if place.exists())
    if needed > (free := shutil.disk_usage(there).free):
        needs, has = (tqdm.format_sizeof(size, "B") for size in (needed, free))
        raise UserError(f"{what}: needs {needs}, {folder} has {has} free; free some or name another place")


@contextmanager
def locked(path: Path):
    """Within, no other process has this lock: it waits, and says so. A kill frees it."""
    lock = FileLock(path)
    with writing(path, "name another place"):
        try:
            lock.acquire(blocking=False)
        except Timeout:
            say(f"{path.parent}: another deepnet prepare works in it; waiting for its end")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def say(text: str) -> None:
    """A line on stderr, above the bars."""
    tqdm.write(text, file=sys.stderr)
