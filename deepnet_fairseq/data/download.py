"""Download files over HTTP into a folder: each appears under its name whole and verified, or not at all.

A download is written to NAME.part, which gets the name NAME when it is complete and verified. If it is interrupted, the
next call resumes it: it requests the bytes that are missing. They must belong to the same version of the file. A
checksum tells this in the end; the server's validator tells it before, the ETag or else the Last-Modified of the
version (RFC 9110, section 8.8). The validator of the version that NAME.part has the beginning of is in .NAME.etag.

A file without a published checksum is compared with the checksum that it had when it was first downloaded. These are
recorded in SHA256SUMS.
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
# "identity": not compressed for the transfer, so that received bytes are those of the file
HEADERS = {"User-Agent": "deepnet_fairseq", "Accept-Encoding": "identity"}
BUSY = (408, 425, 429, 500, 502, 503, 504)  # HTTP statuses after which another attempt may succeed
ATTEMPTS = 6  # attempts in a row without a further byte, after which an address is given up
WAIT = 1.0  # seconds before the next attempt; doubled for each one in a row without a further byte after the first
LONGEST_WAIT = 60.0  # seconds
TIMEOUT = (15.0, 60.0)  # seconds to wait for a connection, and for the next byte
CHUNK = 1 << 18  # bytes read at a time
RESUMED = "free some space or mend it, then run this again: it goes on where it stopped"  # end of errors of the disk


@dataclass(frozen=True)
class RemoteFile:
    """File to download.

    name: name in the folder of downloads, without a path
    urls: addresses, http or https, which are tried in this order, the official one first
    size: bytes, None if unknown
    checksum: "sha256:HEX" or "md5:HEX", None if no trustworthy source published one
    origin: who published the checksum, for messages
    """

    name: str
    urls: tuple[str, ...]
    size: int | None = None
    checksum: str | None = None
    origin: str = ""


def remote_file(*addresses: str, http: bool = False, **facts) -> RemoteFile:
    """Return a RemoteFile that is called like the last part of its first address.

    addresses: without https://, the official one first
    http: whether, after all addresses by https://, all are tried by http:// too
    facts: the fields size, checksum and origin of RemoteFile, as far as they are known
    """
    urls = [f"https://{address}" for address in addresses]
    if http:
        urls += [f"http://{address}" for address in addresses]

    name = addresses[0].rpartition("/")[2]
    return RemoteFile(name, tuple(urls), **facts)


# Function (files, folder) -> {name: path} that brings files into a folder: fetch_all, or miniature.write
Fetch = Callable[[Iterable[RemoteFile], Path], dict[str, Path]]


class Unavailable(Exception):
    """Raised with the reason if an address does not give the file; the next address is tried then."""


def fetch_all(files: Iterable[RemoteFile], folder: Path) -> dict[str, Path]:
    """Download the files that `folder` lacks, and verify the others; return name -> path of all of them.

    folder: of the downloads; it is made if there is none

    Raises a UserError if an existing file is not the file meant, the disk has no space, or no address gives a file.
    """
    files = list(files)
    with writing(folder, "name another place"):
        folder.mkdir(parents=True, exist_ok=True)

    missing = [file for file in files if not _is_there(file, folder)]
    if missing:
        with locked(folder / ".lock"), requests.Session() as session:
            session.headers.update(HEADERS)

            bytes_to_come = 0  # of the files whose sizes are known
            for file in missing:
                received = _size(folder / f"{file.name}.part")
                bytes_to_come += max(0, (file.size or 0) - received)
            need_space(folder, bytes_to_come, "the download")

            for file in missing:
                # asked again: another process may have downloaded it while this one waited for the lock
                if not _is_there(file, folder):
                    _download(file, folder, session)

    # Record the checksums of files that have no published one, for later calls to compare with.
    sums = recorded_sums(folder)
    unrecorded = [file.name for file in files if not file.checksum and file.name not in sums]
    if unrecorded:
        for name in unrecorded:
            sums[name] = digest(folder / name)
        with writing(folder / SUMS, "make the folder writable"), whole(folder / SUMS) as part:
            part.write_text("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)), encoding="utf-8")

    return {file.name: folder / file.name for file in files}


def fetch_described(files: Iterable[RemoteFile], folder: Path, fetch: Fetch) -> dict[str, dict]:
    """Have `fetch` bring files into `folder`; return name -> {"sha256", "size" in bytes, "url": its first address}."""
    files = list(files)
    paths = fetch(files, folder)

    descriptions = {}
    for file, path in zip(files, paths.values(), strict=True):
        descriptions[file.name] = {"sha256": digest(path), "size": path.stat().st_size, "url": file.urls[0]}
    return descriptions


def _is_there(file: RemoteFile, folder: Path) -> bool:
    """Return whether a file is in `folder`, complete and verified.

    Raises a UserError if there is one of this name with another content.
    """
    path = folder / file.name
    if not path.exists():
        return False

    reason = _difference(path, file)
    if reason:
        raise UserError(path, f"is not the file meant, {reason}; remove it to fetch it again, or name another folder")
    return True


def _difference(path: Path, file: RemoteFile) -> str | None:
    """Return how a downloaded file differs from the published one, as words of a message; None if it does not.

    path: of the downloaded file, in the folder of downloads: NAME or NAME.part
    file: the published file

    The size and the checksum are compared, if known, otherwise the checksum of the first download. If there is none
    either, an archive is unpacked to see whether it is broken.
    """
    if not path.is_file():
        return "no ordinary file"
    if file.size is not None and file.size != _size(path):
        return f"{_size(path):,} bytes instead of {file.size:,}"

    checksum = file.checksum  # "ALGORITHM:HEX"
    origin = file.origin
    if not checksum:
        first_sum = recorded_sums(path.parent).get(file.name)
        if first_sum:
            checksum = f"sha256:{first_sum}"
            origin = f"{path.parent / SUMS}, from which its line may be removed"

    if checksum:
        algorithm, _, expected = checksum.partition(":")
        actual = digest(path, algorithm)
        if actual == expected:
            return None

    # The checksum differs, or there is none. Where a file has moved, servers may send a web page in its place; saying
    # so helps more than two checksums that differ.
    with open(path, "rb") as content:
        start = content.read(1000).lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "a web page instead of the file"
    if checksum:
        return f"{algorithm} {actual} instead of {expected} ({origin})"
    return _broken(path, file.name)


def _broken(path: Path, name: str) -> str | None:
    """Unpack an archive to its end, and return what is wrong with it, for a message; None if nothing is.

    This is for files without any checksum, because that of a broken download would be recorded as the right one. For a
    name that does not end with .zip, .gz or .tgz, None is returned: without compression nothing tells of a mistake.

    path: of the archive, NAME or NAME.part
    name: its NAME, whose ending tells its format
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
    # besides errors of their own, zipfile and gzip raise EOFError, zlib.error, OSError, RuntimeError
    except Exception as error:
        return f"no archive that unpacks ({error})"
    return None


def _download(file: RemoteFile, folder: Path, session: requests.Session) -> None:
    """Download a file into `folder` from the first address that gives it.

    Raises a UserError if none does, with the reason for each address.
    """
    part = folder / f"{file.name}.part"
    reasons = []  # for each address, "URL: REASON"
    for url in file.urls:
        try:
            resumed = _size(part) > 0
            _receive(file, url, part, session)
            reason = _difference(part, file)

            if reason and resumed:  # the bytes from before may belong to another version of the file: start anew
                part.unlink()
                _receive(file, url, part, session)
                reason = _difference(part, file)

            if not reason:
                with writing(part, RESUMED):
                    os.replace(part, folder / file.name)
                    _validator_file(part).unlink(missing_ok=True)
                return
            part.unlink()  # so that the next address does not resume it
        except Unavailable as error:
            reason = str(error)
        reasons.append(f"{url}: {reason}")
    raise UserError(
        file.name, f"no address gives it ({'; '.join(reasons)}); download it by hand into {folder} under this name"
    )


def _receive(file: RemoteFile, url: str, part: Path, session: requests.Session) -> None:
    """Receive a file from one address until it is complete, with as many requests as that takes; show a progress bar.

    part: NAME.part, the file to write; what it has already is not received again if that can be avoided

    Raises Unavailable after ATTEMPTS requests in a row that brought no further byte, for an invalid address, and for
    what _request raises it for.
    """
    most_received = _size(part)  # bytes that `part` has had at most; it becomes smaller if the server's file changes
    vain = 0  # requests in a row that brought no further byte
    interval = 0.1 if sys.stderr.isatty() else 30.0  # seconds between updates of the bar; rarely in a log
    with tqdm(desc=file.name, total=file.size, unit="B", unit_scale=True, mininterval=interval, file=sys.stderr) as bar:
        while True:
            try:
                _request(file, url, part, session, bar)
                return
            except UserError:  # the disk is full; this clause comes first because UserError is a ValueError
                raise
            except (ValueError, requests.TooManyRedirects) as error:  # ValueErrors of requests: invalid address
                raise Unavailable(f"no address ({_reason(error)})") from error
            except (requests.RequestException, HTTPError) as error:  # an interruption
                why = _reason(error)

            received = _size(part)
            if received > most_received:
                most_received = received
                vain = 0
            else:
                vain += 1
            if vain == ATTEMPTS:
                raise Unavailable(f"{why}, {vain} times in a row")

            say(f"{file.name}: {why}; the download goes on")
            # WAIT, doubled for each request in vain after the first in a row
            doublings = max(vain - 1, 0)
            time.sleep(min(WAIT * 2**doublings, LONGEST_WAIT))


def _request(file: RemoteFile, url: str, part: Path, session: requests.Session, bar: tqdm) -> None:
    """Request once the bytes that `part` lacks, and append them to it; do nothing if it is known to have all.

    `part` is written anew if its bytes may be of another version, or if the server sends the whole file.

    part: NAME.part
    bar: progress bar of the bytes that `part` has

    Raises Unavailable if the address does not give the file, an HTTPError of urllib3 or a RequestException where
    another request may help, and a UserError if the disk has no space.
    """
    received = _size(part)
    if received and received == file.size:
        return
    validator = ""  # the server's validator of the version of the file that `part` has the beginning of; "" if unknown
    if _validator_file(part).exists():
        validator = _validator_file(part).read_text()

    start = received  # the first byte to request
    if file.size is not None and received > file.size:  # `part` cannot be a beginning of the file
        start = 0
    if not file.checksum and not validator:  # nothing could tell whether the rest belongs to the same version
        start = 0
    headers = {}
    if start:
        headers["Range"] = f"bytes={start}-"
        if validator:
            headers["If-Range"] = validator  # the server sends the whole file if it has another version by now

    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        # RFC 9110: status 200 comes with the whole file, 206 with the range that was asked for ("bytes FIRST-LAST/SIZE"
        # in Content-Range), 416 if there is no such range ("bytes */SIZE")
        status = response.status_code
        content_range = response.headers.get("Content-Range", "")
        etag = response.headers.get("ETag", "")

        if status == 416 and content_range == f"bytes */{start}":
            return  # `part` has all bytes: an earlier process was killed between the last byte and the renaming
        same_version = not validator or not etag or etag == validator
        continues_part = content_range.startswith(f"bytes {start}-") and same_version
        if status == 416 or (status == 206 and not continues_part):
            part.unlink(missing_ok=True)  # so that the next request is for the whole file
            raise ProtocolError("has no rest that fits what is here")
        if status in BUSY:
            raise ProtocolError(f"{status} {response.reason}")
        if status not in (200, 206):
            raise Unavailable(f"{status} {response.reason}")

        if status == 200:  # the whole file, even if a range was asked for
            start = 0

        length = response.headers.get("Content-Length")  # bytes of this answer
        total = start + int(length) if length else file.size  # bytes of the file, None if unknown
        if total is not None and file.size is not None and total != file.size:
            raise Unavailable(f"{total:,} bytes instead of {file.size:,}")
        need_space(part.parent, (total or 0) - start, file.name)

        bar.total = total
        bar.update(start - bar.n)
        with writing(part, then=RESUMED), open(part, "ab" if start else "wb") as out:
            if status == 200:
                # Written after `part` was opened, which empties it: if the process is killed here, the bytes of an
                # earlier version must not be beside the validator of this one.
                _validator_file(part).write_text(etag or response.headers.get("Last-Modified", ""))
            while chunk := response.raw.read1(CHUNK):  # does not wait for a full buffer
                out.write(chunk)
                bar.update(len(chunk))
        if total is not None and _size(part) < total:
            raise ProtocolError(f"ends after {_size(part):,} of {total:,} bytes")


def _validator_file(part: Path) -> Path:
    """Return .NAME.etag, the file with the server's validator of the content of `part`, which is NAME.part."""
    return part.with_name(f".{part.stem}.etag")


def _size(path: Path) -> int:
    """Return a file's size in bytes, 0 if it is missing."""
    return path.stat().st_size if path.exists() else 0


def _reason(error: BaseException) -> str:
    """Return a short message of an error of requests or urllib3, as "[Errno 104] Connection reset by peer".

    Such an error wraps its cause, which may wrap another one. The message is that of the innermost error,
    without what is before its last ": ", such as the name of an object.
    """
    while True:
        # urllib3 keeps the error that it wraps in `reason`, requests keeps it among the arguments
        candidates = (getattr(error, "reason", None), *error.args)
        wrapped = [cause for cause in candidates if isinstance(cause, BaseException)]
        if not wrapped:
            break
        error = wrapped[-1]
    return str(error).rpartition(": ")[2] or type(error).__name__


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Return a file's checksum in hexadecimal; algorithm: hashlib's name of it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def recorded_sums(folder: Path) -> dict[str, str]:
    """Return file name -> SHA-256, in hexadecimal, from the file SHA256SUMS in a folder; {} without that file.

    Raises a UserError that names the first malformed line.
    """
    path = folder / SUMS
    if not path.exists():
        return {}

    sums = {}
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        # "HEX  NAME" or "HEX *NAME", as sha256sum writes it; users may have called it with ./NAME
        match = re.fullmatch(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)", line)
        if not match:
            raise UserError(f"{path}, line {number}", "is not `SHA256  NAME`; write the file anew with sha256sum")
        sums[match[2]] = match[1].lower()
    return sums


@contextmanager
def locked(path: Path):
    """Hold a lock during the context, after waiting for a process that has it; print a line if it has to wait.

    The lock is free again when the process ends, however it ends.

    path: of the lock file
    """
    lock = FileLock(path)
    with writing(path, "name another place"):  # a UserError if the file cannot be made
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
