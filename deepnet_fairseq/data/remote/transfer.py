"""The way of one file into NAME.part, over all its addresses, interruptions and restarts."""

from __future__ import annotations

import os
from pathlib import Path

import requests

from .answer import answer, extent, validator
from .digest import difference, read_note, write_note
from .disk import need_space, writing
from .patience import Interrupted, Unavailable, persist
from .source import RemoteFile

CHUNK = 1 << 18
RESUMED = "free some or mend it, then run this again: it goes on where it stopped"


class WrongContent(Unavailable):
    """An address gives something else than the file."""


class Transfer:
    """One file on its way to `part`. The part of an earlier call is kept where a splice would be noticed.

    file: its checksum, where known, is the one that the result will be held against
    bar: shows the progress
    """

    def __init__(self, file: RemoteFile, part: Path, session: requests.Session, bar):
        self.file, self.part, self.session, self.bar = file, part, session, bar
        self.longest = self.here()

    def here(self) -> int:
        """Bytes that have come so far."""
        return self.part.stat().st_size if self.part.exists() else 0

    def take_from(self, url: str) -> None:
        """Ends with the whole, verified file in `part`, on the disk; else Unavailable, or UserError for our own disk.

        WrongContent leaves no part behind.
        """
        persist(self.file.name, lambda: self._attempt(url), lambda: self.longest)
        if found := difference(self.part, self.file):
            self.part.unlink()
            raise WrongContent(found)

    def _attempt(self, url: str) -> None:
        start, known = self._kept(url)
        if start and start == self.file.size:
            return
        headers = {"Range": f"bytes={start}-"} if start else {}
        if start and known:
            headers["If-Range"] = known
        with answer(self.session, url, headers) as response:
            first, total = extent(response)
            if response.status_code == 416:
                return self._nothing_left(start, total)
            self._check(response, total)
            if first != start or (start and known and validator(response) not in (known, None)):
                start = self._start_over(first)
            if start == 0:
                write_note(self.part, url=url, validator=validator(response))
            need_space(self.part.parent, (total or 0) - self.here(), self.file.name)
            self._write(response.raw, start, total)

    def _kept(self, url: str) -> tuple[int, str | None]:
        """How many bytes of the part are kept, and the validator the server gave with them."""
        start, note = self.here(), read_note(self.part)
        known = note.get("validator") if note.get("url") == url else None
        if (self.file.size is not None and start > self.file.size) or not (known or self.file.checksum):
            start = 0
        return start, known

    def _nothing_left(self, start: int, total: int | None) -> None:
        """416: the part is whole and was only not verified yet, or it is of no use."""
        if not start or start != total:
            self.part.unlink(missing_ok=True)
            raise Interrupted(f"has no bytes from {start:,} on")

    def _check(self, response: requests.Response, total: int | None) -> None:
        page = response.headers.get("Content-Type", "").startswith("text/html")
        if page and not self.file.name.endswith((".html", ".htm")):
            raise Unavailable("a web page comes instead of the file")
        if None not in (total, self.file.size) and total != self.file.size:
            raise Unavailable(f"{total:,} bytes instead of {self.file.size:,}")

    def _start_over(self, first: int) -> int:
        """The server sends the whole (it knows no ranges, or the file has changed), or a rest that does not fit."""
        if first:
            self.part.unlink(missing_ok=True)
            raise Interrupted(f"sends a rest from byte {first:,} that does not fit")
        return 0

    def _write(self, body, start: int, total: int | None) -> None:
        expected = self.file.size if total is None else total
        position = start
        self.bar.at(position, expected)
        with writing(self.part, RESUMED), open(self.part, "ab" if start else "wb", buffering=0) as out:
            while chunk := body.read1(CHUNK):  # what is there: a server that stalls later keeps nothing back
                rest = memoryview(chunk)
                while rest:
                    rest = rest[out.write(rest) :]  # a disk that is nearly full takes some
                position += len(chunk)
                self.longest = max(self.longest, position)
                self.bar.at(position)
                if expected is not None and position > expected:
                    break
            if expected is not None and position < expected:
                raise Interrupted(f"ends after {position:,} of {expected:,} bytes")
            os.fsync(out.fileno())
