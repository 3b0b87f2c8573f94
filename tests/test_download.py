"""Files over HTTP, from a server on this machine that goes wrong on demand."""

from __future__ import annotations

import errno
import time
from email.utils import formatdate
from itertools import repeat
from types import SimpleNamespace

import pytest

from deepnet_fairseq.data.remote import digest, patience
from deepnet_fairseq.data.remote.download import fetch
from deepnet_fairseq.data.remote.patience import Patience
from deepnet_fairseq.data.remote.source import RemoteFile
from deepnet_fairseq.errors import UserError

from .support.fetching import BODY, BUSY, IMPATIENT, WRONG, a_file, a_server, gets, hasty, seen, sha256  # noqa: F401
from .support.loopback import Fault


def test_whole_and_only_once(server, file, tmp_path, monkeypatch):
    """A second call costs no request and no reading; a changed file is noticed all the same."""
    path = fetch(file, tmp_path / "new" / "folder")
    assert path.read_bytes() == BODY and path.name == "a.gz" and seen(path.parent) == ["a.gz"]
    assert {headers["Accept-Encoding"] for _, _, headers in server.asked} == {"identity"}
    before = len(server.asked)
    with monkeypatch.context() as patched:
        patched.setattr(digest, "hashlib", None)
        assert fetch(file, path.parent) == path and len(server.asked) == before
    path.write_bytes(WRONG)
    with pytest.raises(UserError, match=r"a\.gz: is not the file meant, sha256 .* \(the publisher\); remove it"):
        fetch(file, path.parent)
    assert path.read_bytes() == WRONG and len(server.asked) == before


def test_slow_server_finishes(server, file, tmp_path, monkeypatch):
    """Bytes in dribbles, over longer than the read timeout: no reason to give up."""
    monkeypatch.setattr(patience, "PATIENCE", IMPATIENT)
    server.faults["/a.gz"] = [Fault(piece=len(BODY) // 20 + 1, pause=0.05)]
    begun = time.monotonic()
    assert fetch(file, tmp_path).read_bytes() == BODY
    assert time.monotonic() - begun > IMPATIENT.read and server.ranges("/a.gz") == [None]


@pytest.mark.parametrize("status", (408, 429, 500, 502, 503, 504))
def test_busy_then_fine(status, server, file, tmp_path):
    server.faults["/a.gz"] = [Fault(status=status)] * 5
    assert fetch(file, tmp_path).read_bytes() == BODY
    assert len(server.ranges("/a.gz")) == 6


def test_busy_for_ever(server, file, tmp_path):
    server.faults["/a.gz"] = repeat(BUSY)
    with pytest.raises(UserError, match="503 Service Unavailable, 6 times in a row"):
        fetch(file, tmp_path)
    assert len(server.ranges("/a.gz")) == 6 and seen(tmp_path) == []


def test_retry_after(server, file, tmp_path, monkeypatch):
    """Seconds or a date, waited for; too long a wait is none of ours. Else 1, 2, 4 s and so on, with jitter."""
    waits = []
    monkeypatch.setattr(patience, "time", SimpleNamespace(sleep=waits.append))
    monkeypatch.setattr(patience, "PATIENCE", Patience())
    later = formatdate(time.time() + 100, usegmt=True)
    server.faults["/a.gz"] = [BUSY, BUSY, BUSY, *(Fault(503, {"Retry-After": asked}) for asked in ("20", later))]
    fetch(file, tmp_path)
    assert [0.5 <= wait / expected <= 1 for wait, expected in zip(waits, (1, 2, 4))] == [True] * 3
    assert waits[3] == 20 and 95 < waits[4] <= 100
    server.faults["/a.gz"] = [Fault(503, {"Retry-After": "3600"})]
    with pytest.raises(UserError, match="asks to wait 3600 s"):
        fetch(file, tmp_path / "again")
    assert len(waits) == 5


@pytest.mark.parametrize("status", (401, 403, 404, 410))
def test_not_there_asks_the_next_at_once(status, server, file, tmp_path):
    server.files["/b"] = BODY
    server.faults["/a.gz"] = repeat(Fault(status=status))
    both = RemoteFile("a.gz", (*file.urls, server.url("/b")), len(BODY), sha256(BODY))
    assert fetch(both, tmp_path).read_bytes() == BODY
    assert gets(server) == ["/a.gz", "/b"]


def test_no_address_gives_it(server, tmp_path):
    """One line with every address, its reason, and the way out."""
    server.faults["/a.gz"] = repeat(Fault(status=410))
    with pytest.raises(UserError) as caught:
        urls = (server.url("/a.gz"), server.url("/none"), "http://127.0.0.1:1/a.gz")
        fetch(RemoteFile("a.gz", urls), tmp_path)
    line = str(caught.value)
    assert "\n" not in line and line.startswith("a.gz: ")
    for part in (f"{urls[0]}: 410 Gone", f"{urls[1]}: 404 Not Found", f"{urls[2]}: [Errno {errno.ECONNREFUSED}]"):
        assert part in line
    assert f"by hand into {tmp_path} under this name, or set a mirror (DEEPNET_MIRROR)" in line
    assert seen(tmp_path) == []


def test_wrong_checksum(server, file, tmp_path):
    """Once more from scratch, then one line with what was expected and found, and nothing left."""
    server.files["/a.gz"] = WRONG
    with pytest.raises(UserError) as caught:
        fetch(file, tmp_path)
    assert f"{sha256(WRONG)[7:]} instead of {sha256(BODY)[7:]} (the publisher)" in str(caught.value)
    assert str(caught.value).startswith("a.gz: ") and seen(tmp_path) == []
    assert server.ranges("/a.gz") == [None, None]


def test_wrong_checksum_then_the_next_address(server, file, tmp_path):
    server.files |= {"/a.gz": WRONG, "/b": BODY}
    both = RemoteFile("a.gz", (*file.urls, server.url("/b")), None, file.checksum)
    assert fetch(both, tmp_path).read_bytes() == BODY
    assert gets(server) == ["/a.gz", "/b"] and server.ranges("/b") == [None]


@pytest.mark.parametrize("size", (len(BODY) - 1, len(BODY) + 1, 0))
def test_wrong_size_costs_no_download(size, server, tmp_path):
    server.faults["/a.gz"] = repeat(Fault(piece=10_000, pause=0.01))
    with pytest.raises(UserError, match=f"{len(BODY):,} bytes instead of {size:,}"):
        fetch(RemoteFile("a.gz", (server.url("/a.gz"),), size), tmp_path)
    assert server.sent["/a.gz"] < len(BODY) and seen(tmp_path) == []


def test_web_page_instead_of_the_file(server, tmp_path):
    server.headers["/a.gz"]["Content-Type"] = "text/html; charset=utf-8"
    with pytest.raises(UserError, match="a web page comes instead of the file"):
        fetch(RemoteFile("a.gz", (server.url("/a.gz"),)), tmp_path)
    assert seen(tmp_path) == []


def test_redirects_stay_on_http(server, file, tmp_path):
    server.faults["/there"] = [Fault(302, {"Location": "/a.gz"})]
    server.faults["/file"] = repeat(Fault(302, {"Location": f"file://{__file__}"}))
    server.files |= {"/there": b"", "/file": b""}
    there = RemoteFile("a.gz", (server.url("/there"),), len(BODY), sha256(BODY))
    assert fetch(there, tmp_path).read_bytes() == BODY
    with pytest.raises(UserError, match=r"No connection adapters"):
        fetch(RemoteFile("b", (server.url("/file"),)), tmp_path)
