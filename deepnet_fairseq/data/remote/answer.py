"""A server's answer to one request, with everything that can go wrong told apart: asked again, or given up."""

from __future__ import annotations

import re
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from urllib.parse import urlsplit

import requests
import urllib3

from ... import __version__
from . import patience
from .patience import Interrupted, Unavailable

BUSY = (408, 425, 429, 500, 502, 503, 504)
FINE = (200, 206, 416)  # 416: nothing is left to send, or never was there
LOOPBACK = ("localhost", "127.0.0.1", "::1")  # behind no proxy
HEADERS = {"User-Agent": f"deepnet_fairseq/{__version__}", "Accept-Encoding": "identity"}  # the bytes as they lie there


@contextmanager
def answer(session: requests.Session, url: str, headers: dict | None = None, method: str = "GET"):
    """A requests.Response whose body is still to be read, in a `with` block.

    Interrupted, Unavailable: before it, or while it is read. Waits as long as patience.PATIENCE says.
    """
    session.trust_env = urlsplit(url).hostname not in LOOPBACK
    timeout = (patience.PATIENCE.connect, patience.PATIENCE.read)
    try:
        with session.request(
            method, url, headers=HEADERS | (headers or {}), stream=True, timeout=timeout, allow_redirects=True
        ) as response:
            if response.status_code in BUSY:
                raise Interrupted(status(response), asked_to_wait(response))
            if response.status_code not in FINE:
                raise Unavailable(status(response))
            yield response
    except (requests.exceptions.SSLError, requests.TooManyRedirects) as error:
        raise Unavailable(reason(error)) from error
    except (requests.RequestException, urllib3.exceptions.HTTPError, HTTPException, ConnectionError) as error:
        kind = Unavailable if isinstance(error, ValueError) else Interrupted  # ValueError: an address of no use
        raise kind(reason(error)) from error


def status(response: requests.Response) -> str:
    """As "404 Not Found"."""
    return f"{response.status_code} {response.reason}"


def reason(error: BaseException) -> str:
    """What requests and urllib3 wrap several times, without the wrappers: [Errno 104] Connection reset by peer."""
    inner = error
    while isinstance(inner, BaseException):
        error = inner
        wrapped = [arg for arg in error.args if isinstance(arg, BaseException)]
        inner = wrapped[-1] if wrapped else getattr(error, "reason", None)
    return (str(error).rpartition(": ")[2] or type(error).__name__).replace("\n", " ")


def asked_to_wait(response: requests.Response) -> float:
    """Seconds of Retry-After, which holds seconds or a date; 0 without it."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def extent(response: requests.Response) -> tuple[int, int | None]:
    """(first, total): which byte of the file the body starts with, and how many the file has, None if untold.

    Unavailable if the server's Content-Range makes no sense.
    """
    if response.status_code == 200:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    text = response.headers.get("Content-Range", "")
    if not (match := re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(?:(\d+)|\*)", text.strip())):
        raise Unavailable(f"{status(response)} with Content-Range {text!r}")
    return int(match[1] or 0), int(match[2]) if match[2] else None


def validator(response: requests.Response) -> str | None:
    """What tells two versions of the file apart: a strong ETag or, without it, the time of its last change."""
    etag = response.headers.get("ETag", "")
    return etag if etag.startswith('"') else response.headers.get("Last-Modified")


def content_length(session: requests.Session, url: str) -> int | None:
    """Bytes by a HEAD request, None where the server does not say; Interrupted when there is no server."""
    try:
        with answer(session, url, method="HEAD") as response:
            return extent(response)[1]
    except Interrupted:
        raise
    except Unavailable:
        return None
