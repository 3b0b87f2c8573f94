"""Download files over HTTP into a folder: each appears under its name whole and verified, or not at all.

A partial download lies in NAME.part, and the next call resumes it. Two further files serve downloads without a
published checksum: .NAME.etag beside the partial download tells two versions of the file apart, and SHA256SUMS holds
the checksum that the file had when it was first downloaded.
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
BUSY = (408, 425, 429, 500, 502, 503, 504)  # HTTP statuses after which another attempt may succeed
ATTEMPTS = 6  # attempts in a row without a further byte, after which an address is given up
WAIT = 1.0  # seconds before the second attempt, doubled before each later one
LONGEST_WAIT = 60.0  # seconds
TIMEOUT = (15.0, 60.0)  # seconds to connect, and without a byte
CHUNK = 1 << 18  # bytes read at a time
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


def remote_file(*addresses: str, http: bool = False, **facts) -> RemoteFile:
    """Make a RemoteFile whose name is the last part of its first address.

    addresses: without https://, the official one first
    http: try all addresses without encryption too, after those with it
    facts: the other fields of RemoteFile
    """
    urls = [f"https://{address}" for address in addresses]
    if http:
        urls += [f"http://{address}" for address in addresses]

    name = addresses[0].rpartition("/")[2]
    return RemoteFile(name, tuple(urls), **facts)


Fetch = Callable[[Iterable[RemoteFile], Path], dict[str, Path]]  # fetch_all, or a stand-in for it


class Unavailable(Exception):
    """Raised when an address does not give the file, with the reason."""


def fetch_all(files: Iterable[RemoteFile], folder: Path) -> dict[str, Path]:
    """Fetch the files that `folder` lacks, and make the folder if there is none; return name -> path of all of them.

    A file that is there already is verified without a request.

    Raises a UserError if an existing file is not the file meant, the disk has no room, or no address gives a file.
    """
    files = list(files)
    with writing(folder, "name another place"):
        folder.mkdir(parents=True, exist_ok=True)

    missing = [file for file in files if not _is_there(file, folder)]
    if missing:
        with locked(folder / ".lock"), requests.Session() as session:
            session.headers.update(HEADERS)

            lacking = 0  # bytes, as far as sizes are known
            for file in missing:
                received = _size(folder / f"{file.name}.part")
                lacking += max(0, (file.size or 0) - received)
            need_space(folder, lacking, "the download")

            for file in missing:
                if not _is_there(file, folder):  # another process may have fetched it meanwhile
                    _download(file, folder, session)

    # Without a published checksum, the first download's is what later ones are held against.
    sums = recorded_sums(folder)
    unrecorded = [file.name for file in files if not file.checksum and file.name not in sums]
    if unrecorded:
        for name in unrecorded:
            sums[name] = digest(folder / name)
        with writing(folder / SUMS, "make the folder writable"), whole(folder / SUMS) as part:
            part.write_text("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)), encoding="utf-8")

    return {file.name: folder / file.name for file in files}


def fetch_described(files: Iterable[RemoteFile], folder: Path, fetch: Fetch) -> dict[str, dict]:
    """Fetch files into `folder` by `fetch`; return name -> {"sha256", "size" in bytes, "url"}."""
    files = list(files)
    paths = fetch(files, folder)

    descriptions = {}
    for file, path in zip(files, paths.values(), strict=True):
        descriptions[file.name] = {"sha256": digest(path), "size": path.stat().st_size, "url": file.urls[0]}
    return descriptions


def _is_there(file: RemoteFile, folder: Path) -> bool:
    """Return whether the file is in `folder`, verified; raise a UserError if another one lies under its name."""
    path = folder / file.name
    if not path.exists():
        return False

    reason = _difference(path, file)
    if reason:
        raise UserError(f"{path}: is not the file meant, {reason}; remove it to fetch it again, or name another folder")
    return True


def _difference(path: Path, file: RemoteFile) -> str | None:
    """Describe how `path` differs from the file that was published, or first downloaded; None if it does not."""
    if not path.is_file():
        return "no ordinary file"
    if file.size is not None and file.size != _size(path):
        return f"{_size(path):,} bytes instead of {file.size:,}"

    checksum = file.checksum
    origin = file.origin
    if not checksum:
        first_sum = recorded_sums(path.parent).get(file.name)
        if first_sum:
            checksum = f"sha256:{first_sum}"
            origin = f"{path.parent / SUMS}, from which its line may be removed"  # for the message below
    if checksum:
        algorithm, _, expected = checksum.partition(":")
        actual = digest(path, algorithm)
        if actual == expected:
            return None

    # a web page in place of the file explains a wrong checksum better than two checksums do
    with open(path, "rb") as content:
        start = content.read(1000).lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "a web page instead of the file"
    if checksum:
        return f"{algorithm} {actual} instead of {expected} ({origin})"
    return _broken(path, file.name)


def _broken(path: Path, name: str) -> str | None:
    """Read an archive to its end, and return what is wrong with it; None if nothing is, or if it is no archive.

    Without this a broken download without a published checksum would have its own checksum recorded as the right one.

    path: where the archive lies now; name: its name when it is complete, whose ending tells its format
    """
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                broken_member = archive.testzip()
            return f"broken at {broken_member!r}" if broken_member else None
        if name.endswith((".gz", ".tgz")):
            with gzip.open(path) as unpacked:
                while unpacked.read(CHUNK):
                    pass
    except Exception as error:  # besides their own they raise EOFError, zlib.error, OSError, RuntimeError
        return f"no archive that unpacks ({error})"
    return None


def _download(file: RemoteFile, folder: Path, session: requests.Session) -> None:
    """Download a file from the first address that gives it; raise a UserError with all reasons if none does."""
    part = folder / f"{file.name}.part"
    reasons = []
    for url in file.urls:
        try:
            resumed = _size(part) > 0
            _receive(file, url, part, session)
            reason = _difference(part, file)

            if reason and resumed:  # the bytes that were there before may be another file's
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
    """Receive the whole file into `part`, resuming after interruptions.

    Raises Unavailable after ATTEMPTS interruptions in a row without a further byte, and for an invalid address.
    """
    furthest = _size(part)  # bytes, the most that `part` has had
    vain = 0  # interruptions in a row without a further byte
    every = 0.1 if sys.stderr.isatty() else 30.0  # seconds between updates of the bar
    with tqdm(desc=file.name, total=file.size, unit="B", unit_scale=True, mininterval=every, file=sys.stderr) as bar:
        while True:
            try:
                _request(file, url, part, session, bar)
                return
            except UserError:
                raise
            except (ValueError, requests.TooManyRedirects) as error:  # an invalid address or redirection
                raise Unavailable(f"no address ({_reason(error)})") from error
            except (requests.RequestException, HTTPError) as error:
                why = _reason(error)

            received = _size(part)
            if received > furthest:
                furthest = received
                vain = 0
            else:
                vain += 1
            if vain == ATTEMPTS:
                raise Unavailable(f"{why}, {vain} times in a row")

            say(f"{file.name}: {why}; goes on")
            doublings = max(vain - 1, 0)
            time.sleep(min(WAIT * 2**doublings, LONGEST_WAIT))


def _request(file: RemoteFile, url: str, part: Path, session: requests.Session, bar: tqdm) -> None:
    """Request the bytes that `part` lacks, and append them to it.

    Raises Unavailable if the address does not give the file, and an HTTPError of urllib3 or a RequestException where
    another attempt may help.
    """
    received = _size(part)
    validator = ""  # the server's name of the version that `part` is of
    if _etag(part).exists():
        validator = _etag(part).read_text()

    # Resume only where a checksum or the server can tell that the rest belongs to what is here.
    if received and received == file.size:
        return
    start = received
    if file.size is not None and received > file.size:
        start = 0
    if not file.checksum and not validator:
        start = 0
    headers = {}
    if start:
        headers["Range"] = f"bytes={start}-"
        if validator:
            headers["If-Range"] = validator  # the server sends the whole file if it has another version by now

    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        status = response.status_code
        content_range = response.headers.get("Content-Range", "")
        validator_now = response.headers.get("ETag", "")

        if status == 416 and content_range == f"bytes */{start}":
            return  # a former process was killed between the last byte and the renaming
        same_version = not validator or not validator_now or validator_now == validator
        fits = content_range.startswith(f"bytes {start}-") and same_version
        if status == 416 or (status == 206 and not fits):
            part.unlink(missing_ok=True)
            raise ProtocolError("has no rest that fits what is here")
        if status in BUSY:
            raise ProtocolError(f"{status} {response.reason}")
        if status not in (200, 206):
            raise Unavailable(f"{status} {response.reason}")

        if status == 200:  # the whole file, whatever was asked for
            start = 0
            _etag(part).write_text(validator_now or response.headers.get("Last-Modified", ""))

        length = response.headers.get("Content-Length")
        total = start + int(length) if length else file.size
        if total is not None and file.size is not None and total != file.size:
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
    """Return the file that holds the server's validator (ETag, else Last-Modified) of the content of `part`."""
    return part.with_name(f".{part.stem}.etag")


def _size(path: Path) -> int:
    """Return a file's bytes, 0 if it is missing."""
    return path.stat().st_size if path.exists() else 0


def _reason(error: BaseException) -> str:
    """Return the words of the innermost error that requests and urllib3 wrapped, as "Connection reset by peer"."""
    while True:
        candidates = (getattr(error, "reason", None), *error.args)
        wrapped = [cause for cause in candidates if isinstance(cause, BaseException)]
        if not wrapped:
            break
        error = wrapped[-1]
    return str(error).rpartition(": ")[2] or type(error).__name__


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Compute a file's checksum in hexadecimal; algorithm: hashlib's name of it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def recorded_sums(folder: Path) -> dict[str, str]:
    """Read FOLDER/SHA256SUMS as name -> checksum, {} without one; raise a UserError that names a malformed line."""
    path = folder / SUMS
    if not path.exists():
        return {}

    sums = {}
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        match = re.fullmatch(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)", line)
        if not match:
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
