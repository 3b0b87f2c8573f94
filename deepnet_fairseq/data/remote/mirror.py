"""A server that holds copies of others: MIRROR/HOST/PATH for https://HOST/PATH.

Two uses: an institution serves a corpus inside its own network, and tests serve miniature corpora. Where the content is
not the published one, MIRROR/SHA256SUMS (lines `HEX  HOST/PATH`, as sha256sum writes them in the mirror's folder)
says what it is; those checksums then stand in the place of the recipes', and the recipes' sizes do not count.
"""

from __future__ import annotations

import dataclasses
import os
from urllib.parse import unquote, urlsplit

import requests

from ...errors import UserError
from .answer import answer
from .patience import Unavailable, persist
from .source import RemoteFile
from .sums import NAME, parse_sums

VARIABLE = "DEEPNET_MIRROR"


class Mirror:
    """prefix: http://HOST:PORT/PREFIX; sums: HOST/PATH -> sha256, empty where the mirror says nothing of its own."""

    def __init__(self, prefix: str, sums: dict[str, str]):
        self.prefix, self.sums = prefix.rstrip("/"), sums

    def copy_of(self, file: RemoteFile) -> RemoteFile:
        """The same file, at the mirror's addresses."""
        places = [_place(url) for url in file.urls]
        copy = dataclasses.replace(file, urls=tuple(f"{self.prefix}/{place}" for place in places))
        for place in places:
            if sha256 := self.sums.get(unquote(place)):
                origin = f"{self.prefix}/{NAME}"
                return dataclasses.replace(copy, size=None, checksum=f"sha256:{sha256}", origin=origin)
        return copy


def _place(url: str) -> str:
    """HOST/PATH, with ?QUERY where there is one."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] + parts.path + (f"?{parts.query}" if parts.query else "")


def find_mirror(prefix: str | None, session: requests.Session) -> Mirror | None:
    """The mirror named, or else the one of the environment, or None. UserError if it does not answer."""
    prefix = prefix or os.environ.get(VARIABLE)
    if not prefix:
        return None
    url = f"{prefix.rstrip('/')}/{NAME}"
    RemoteFile(NAME, (url,))  # an address, or UserError
    try:
        return Mirror(prefix, persist(url, lambda: _sums(url, session), lambda: 0))
    except Unavailable as error:
        raise UserError(f"mirror {prefix}: {error}; mend it, or name another with {VARIABLE}") from error


def _sums(url: str, session: requests.Session) -> dict[str, str]:
    try:
        with answer(session, url) as response:
            return parse_sums(response.raw.read().decode(), url)
    except Unavailable as error:
        if str(error).startswith("404 "):
            return {}
        raise
