"""Download files over HTTP into a folder: each appears under its name whole and verified, or not at all.

A partial download lies in NAME.part and is resumed by the next call; .NAME.etag beside it tells two versions of a file
without a published checksum apart. SHA256SUMS holds the checksums of such files from their first download.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
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

from ..errors import UserError
from ..files import whole
from .folder import need_space
from .lines import writing

SUMS = "SHA256SUMS"  # lines `HEX  NAME`, as sha256sum writes and checks them
# "identity": no compression for the transfer
HEADERS = {"User-Agent": "deepnet_fairseq", "Accept-Encoding": "identity"}
BUSY = (408, 425, 429, 500, 502, 503, 504)
ATTEMPTS = 6  # attempts in a row that bring no byte
WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds before the second attempt, doubled before each later one
TIMEOUT = (15.0, 60.0)  # seconds to connect, and without a byte
CHUNK = 1 << 18
RESUMED = "free some space or mend it, then run this again: it goes on where it stopped"


@dataclass(frozen=True)
class RemoteFile:
    """File to fetch.

    name: name in the folder, without a path
    urls: http or https, tried in this order, the official one first
    size: bytes, None if unknown
    checksum: "sha256:HEX" or "md5:HEX", None if no trustworthy source published one
    origin: publisher of the checksum
    """

    name: str
    urls: tuple[str, ...]
    size: int | None = None
    checksum: str | None = None
    origin: str = ""


def at(*addresses: str, http: bool = False, **facts) -> RemoteFile:
    """Make a RemoteFile named as at its addresses (without https://); http: also try without encryption."""
    schemes = ("https", "http") if http else ("https",)
    urls = tuple(f"{scheme}://{address}" for scheme in schemes for address in addresses)
    return RemoteFile(addresses[0].rpartition("/")[2], urls, **facts)


Fetch = Callable[[Iterable[RemoteFile], Path], dict[str, Path]]  # fetch_all, or a stand-in for it


class Unavailable(Exception):
    """Raised when an address does not give the file, with the reason."""


def fetch_all(files: Iterable[RemoteFile], folder: Path) -> dict[str, Path]:
    """Fetch files into `folder`, which is made; return name -> path. Files that are there and verified cost no request.

    Raises a UserError if an existing file is another one, the disk has no room, or no address gives a file.
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
                if not _is_there(file, folder):  # another process may have fetched it meanwhile
                    _download(file, folder, session)
    sums = recorded_sums(folder)
    if new := [file.name for file in files if not file.checksum and file.name not in sums]:
        sums |= {name: digest(folder / name) for name in new}
        with writing(folder / SUMS, "make the folder writable"), whole(folder / SUMS) as part:
            part.write_text("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)), encoding="utf-8")
    return {file.name: folder / file.name for file in files}


def described(files: Iterable[RemoteFile], folder: Path, fetch: Fetch) -> dict[str, dict]:
    """Fetch files; return name -> {"sha256", "size" in bytes, "url"}."""
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
    if reason := _difference(path, file):
        raise UserError(f"{path}: is not the file meant, {reason}; remove it to fetch it again, or name another folder")
    return True


def _difference(path: Path, file: RemoteFile) -> str | None:
    """Describe how `path` differs from the file that was published, or first downloaded; None if it does not."""
    if not path.is_file():
        return "no ordinary file"
    if file.size not in (None, _size(path)):
        return f"{_size(path):,} bytes instead of {file.size:,}"
    checksum, origin = file.checksum, file.origin
    if not checksum and (first_sum := recorded_sums(path.parent).get(file.name)):
        checksum, origin = f"sha256:{first_sum}", f"{path.parent / SUMS}, from which its line may be removed"
    algorithm, _, expected = (checksum or "").partition(":")
    if algorithm and (actual := digest(path, algorithm)) == expected:
        return None
    with open(path, "rb") as content:
        start = content.read(1000).lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "a web page instead of the file"
    return f"{algorithm} {actual} instead of {expected} ({origin})" if algorithm else _broken(path, file.name)


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
    """Download a file from the first address that gives it."""
    part, reasons = folder / f"{file.name}.part", []
    for url in file.urls:
        try:
            resumed = _size(part)
            _receive(file, url, part, session)
            if (reason := _difference(part, file)) and resumed:  # its first part was another file's
                part.unlink()
                _receive(file, url, part, session)
                reason = _difference(part, file)
            if not reason:
                with writing(part, RESUMED):
                    os.replace(part, folder / file.name)
                    _etag(part).unlink(missing_ok=True)
                return
            part.unlink()
        except Unavailable as error:
            reason = str(error)
        reasons.append(f"{url}: {reason}")
    raise UserError(
        f"{file.name}: no address gives it ({'; '.join(reasons)}); download it by hand into {folder} under this name"
    )


def _receive(file: RemoteFile, url: str, part: Path, session: requests.Session) -> None:
    """Receive the whole file into `part`; raise Unavailable after ATTEMPTS interruptions without a further byte."""
    most, vain = _size(part), 0
    every = 0.1 if sys.stderr.isatty() else 30.0  # seconds between updates of the bar
    with tqdm(desc=file.name, total=file.size, unit="B", unit_scale=True, mininterval=every, file=sys.stderr) as bar:
        while True:
            try:
                return _request(file, url, part, session, bar)
            except UserError:
                raise
            except (ValueError, requests.TooManyRedirects) as error:  # an invalid address or redirection
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
    """Request the bytes that `part` lacks; raise Unavailable, or an HTTPError where another attempt may help."""
    start, tag = _size(part), _etag(part).read_text() if _etag(part).exists() else ""
    if start and start == file.size:
        return
    if (file.size is not None and start > file.size) or not (file.checksum or tag):
        start = 0
    headers = ({"Range": f"bytes={start}-"} | ({"If-Range": tag} if tag else {})) if start else {}
    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        content_range, now = response.headers.get("Content-Range", ""), response.headers.get("ETag", "")
        if response.status_code == 416 and content_range == f"bytes */{start}":
            return  # a former process was killed between the last byte and the renaming
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
            while chunk := response.raw.read1(CHUNK):  # does not wait for a full buffer
                out.write(chunk)
                bar.update(len(chunk))
        if total is not None and _size(part) < total:
            raise ProtocolError(f"ends after {_size(part):,} of {total:,} bytes")


def _etag(part: Path) -> Path:
    """Return the file that holds the server's validator (ETag) of the content of `part`."""
    return part.with_name(f".{part.stem}.etag")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: BaseException) -> str:
    """Unwrap the innermost error of requests and urllib3: [Errno 104] Connection reset by peer."""
    while inner := [arg for arg in (getattr(error, "reason", None), *error.args) if isinstance(arg, BaseException)]:
        error = inner[-1]
    return str(error).rpartition(": ")[2] or type(error).__name__


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Compute a file's checksum in hexadecimal, by hashlib's name of the algorithm."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def recorded_sums(folder: Path) -> dict[str, str]:
    """Read FOLDER/SHA256SUMS as name -> checksum, {} without one; a UserError names a malformed line."""
    path, sums = folder / SUMS, {}
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for number, line in enumerate(text.splitlines(), 1):
        if not (match := re.fullmatch(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)", line)):
            raise UserError(f"{path}, line {number}: is not `SHA256  NAME`; write the file anew with sha256sum")
        sums[match[2]] = match[1].lower()
    return sums


@contextmanager
def locked(path: Path):
    """Hold a lock that one process has at a time; say so if it has to wait. The end of the process frees it."""
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
    """Print a line to stderr, above the progress bars."""
    tqdm.write(text, file=sys.stderr)
