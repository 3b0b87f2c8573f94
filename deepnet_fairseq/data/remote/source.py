"""A file that lies elsewhere: its addresses, and what it must be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from ...errors import UserError

CHECKSUM = re.compile(r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}")


@dataclass(frozen=True)
class RemoteFile:
    """One file to fetch. UserError if a field is none of what it may be.

    name: what it is called once it is here, no path
    urls: http or https, the official one first, then mirrors
    size: bytes, None if unknown
    checksum: "sha256:HEX" or "md5:HEX", None if no one trustworthy published one
    origin: who published the checksum
    """

    name: str
    urls: tuple[str, ...]
    size: int | None = None
    checksum: str | None = None
    origin: str = ""

    def __post_init__(self):
        if not self.name or self.name.startswith(".") or re.search(r"[/\\\0]", self.name):
            raise UserError(f"{self.name!r}: is no name for a file; leave out folders and a dot at the start")
        if not self.urls:
            raise UserError(f"{self.name}: has no address; name at least one")
        for url in self.urls:
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                raise UserError(f"{self.name}: {url} is no address that starts with http:// or https://")
        if self.checksum and not CHECKSUM.fullmatch(self.checksum.lower()):
            raise UserError(f"{self.name}: {self.checksum} is no checksum; write sha256:HEX or md5:HEX")
