"""Downloads that were broken off: what is there is kept, unless it is of another file."""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import repeat

import pytest

from deepnet_fairseq.data.remote import patience
from deepnet_fairseq.data.remote.download import fetch
from deepnet_fairseq.data.remote.source import RemoteFile
from deepnet_fairseq.errors import UserError

from .support.fetching import BODY, BUSY, IMPATIENT, WRONG, a_file, a_server, hasty, seen, sha256  # noqa: F401
from .support.loopback import Fault
from .support.ranks import CONTEXT

EVERY_OUTAGE = [Fault(after=300_000), Fault(after=200_000, then="reset"), Fault(after=100_000, then="stall")]


@pytest.mark.parametrize("outage", EVERY_OUTAGE, ids=lambda outage: outage.then)
def test_broken_transfers_resume(outage, server, file, tmp_path, monkeypatch):
    """Truncated, reset, stalled: the rest is asked for, and no byte is sent twice."""
    if outage.then == "stall":
        monkeypatch.setattr(patience, "PATIENCE", IMPATIENT)
    server.faults["/a.gz"] = [outage, outage]
    assert fetch(file, tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz") == [None, f"bytes={outage.after}-", f"bytes={2 * outage.after}-"]
    assert server.sent["/a.gz"] == len(BODY) and seen(tmp_path) == ["a.gz"]


def test_progress_counts_as_new_patience(server, file, tmp_path):
    """20 interruptions, more than three times the attempts in a row."""
    server.faults["/a.gz"] = [Fault(after=51_200, then="reset")] * 19
    assert fetch(file, tmp_path).read_bytes() == BODY
    assert len(server.ranges("/a.gz")) == 20 and server.sent["/a.gz"] == len(BODY)


def test_server_that_starts_over_ends(server, file, tmp_path):
    """Without ranges an interruption at the same place is in vain: 6 times more, not for ever."""
    server.ignores_range.add("/a.gz")
    server.faults["/a.gz"] = repeat(Fault(after=300_000))
    with pytest.raises(UserError, match=r"a\.gz: no address gives it .*6 times in a row"):
        fetch(file, tmp_path)
    assert len(server.ranges("/a.gz")) == 7 and seen(tmp_path) == ["a.gz.part"]
    server.faults["/a.gz"] = [Fault(after=300_000)]
    assert fetch(file, tmp_path).read_bytes() == BODY  # 200 to a Range: nothing is spliced
    assert server.ranges("/a.gz")[-1] == "bytes=300000-"


def test_dribbles_are_kept(server, file, tmp_path, monkeypatch):
    """A few bytes before a stall are on the disk and not asked for again: no buffer waits to be full."""
    monkeypatch.setattr(patience, "PATIENCE", IMPATIENT)
    server.faults["/a.gz"] = [Fault(after=7, piece=1, pause=0.01, then="stall")]
    assert fetch(file, tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz") == [None, "bytes=7-"]


def test_bad_part_is_mended(server, file, tmp_path):
    """A part that holds something else is spliced, noticed, and fetched anew from the only address."""
    (tmp_path / "a.gz.part").write_bytes(b"x" * 1000)
    assert fetch(file, tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz") == ["bytes=1000-", None]


@pytest.mark.parametrize("heeded", (True, False))
def test_changed_file_is_not_spliced(heeded, server, tmp_path):
    """No checksum is known: the ETag, sent as If-Range, tells that the rest belongs to another file.

    A server that sends the rest nevertheless gives itself away by the new ETag.
    """
    server.headers["/a.gz"]["ETag"] = '"1"'
    file = RemoteFile("a.gz", (server.url("/a.gz"),))
    server.faults["/a.gz"] = [Fault(after=300_000), *[BUSY] * 6]
    with pytest.raises(UserError):
        fetch(file, tmp_path)
    assert (tmp_path / "a.gz.part").stat().st_size == 300_000
    server.files["/a.gz"], server.headers["/a.gz"]["ETag"] = WRONG[::-1], '"2"'
    if not heeded:
        server.ignores_if_range.add("/a.gz")
    before = len(server.ranges("/a.gz"))
    assert fetch(file, tmp_path).read_bytes() == WRONG[::-1]
    assert server.ranges("/a.gz")[before:] == ["bytes=300000-", None][: 1 if heeded else 2]
    assert [headers.get("If-Range") for *_, headers in server.asked if "Range" in headers][-1] == '"1"'


@pytest.mark.parametrize("name", ("ETag", "Last-Modified"))
def test_unchanged_file_without_checksum_resumes(name, server, tmp_path):
    server.headers["/a.gz"][name] = {"ETag": '"1"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}[name]
    server.faults["/a.gz"] = [Fault(after=300_000)]
    assert fetch(RemoteFile("a.gz", (server.url("/a.gz"),)), tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz") == [None, "bytes=300000-"] and server.sent["/a.gz"] == len(BODY)


def test_nothing_to_tell_a_splice_by_starts_over(server, tmp_path):
    server.faults["/a.gz"] = [Fault(after=300_000)]
    assert fetch(RemoteFile("a.gz", (server.url("/a.gz"),)), tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz") == [None, None]


def test_part_that_is_whole_or_too_long(server, tmp_path):
    """Killed between the last byte and the name: verified without fetching (416). Too long: started over."""
    file = RemoteFile("a.gz", (server.url("/a.gz"),), None, sha256(BODY))
    (tmp_path / "a.gz.part").write_bytes(BODY)
    assert fetch(file, tmp_path).read_bytes() == BODY and server.sent["/a.gz"] == 0
    (tmp_path / "a.gz").unlink()
    (tmp_path / "a.gz.part").write_bytes(BODY + b"more")
    assert fetch(file, tmp_path).read_bytes() == BODY and server.sent["/a.gz"] == len(BODY)


def test_body_without_length(server, tmp_path):
    """Cut short, it is noticed by the recipe's size or checksum, and the rest is fetched."""
    server.no_length.add("/a.gz")
    server.faults["/a.gz"] = [Fault(after=300_000)]
    file = RemoteFile("a.gz", (server.url("/a.gz"),), len(BODY), sha256(BODY))
    assert fetch(file, tmp_path).read_bytes() == BODY and server.sent["/a.gz"] == len(BODY)
    server.files["/a.gz"] = BODY * 2
    with pytest.raises(UserError, match=f"bytes instead of {len(BODY):,}"):
        fetch(file, tmp_path / "again")
    assert seen(tmp_path / "again") == []


def test_ranges_that_were_not_asked_for(server, file, tmp_path):
    """206 with other bytes: nothing is spliced."""
    (tmp_path / "a.gz.part").write_bytes(BODY[:1000])
    server.faults["/a.gz"] = [Fault(206, {"Content-Range": f"bytes 5-{len(BODY) - 1}/{len(BODY)}"})]
    assert fetch(file, tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz") == ["bytes=1000-", None]


def a_life(urls, checksum, folder) -> None:
    """A process that fetches; Ctrl-C ends it as it does a program, however the tests were started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fetch(RemoteFile("a.gz", urls, None, checksum), folder)


@pytest.mark.parametrize("stop", (signal.SIGKILL, signal.SIGINT))
@pytest.mark.parametrize("known", (True, False), ids=("checksum", "etag"))
def test_killed_in_the_middle(stop, known, server, file, tmp_path):
    """Only the part is left, and the next call goes on where it ends."""
    server.headers["/a.gz"]["ETag"] = '"1"'
    server.faults["/a.gz"] = [Fault(piece=20_000, pause=0.05)]
    checksum = file.checksum if known else None
    process = CONTEXT.Process(target=a_life, args=(file.urls, checksum, tmp_path))
    process.start()
    part = tmp_path / "a.gz.part"
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size >= 100_000):
        assert time.monotonic() < deadline and process.is_alive()
        time.sleep(0.01)
    os.kill(process.pid, stop)
    process.join(30)
    assert process.exitcode == (-signal.SIGKILL if stop == signal.SIGKILL else 1)
    assert seen(tmp_path) == ["a.gz.part"]
    there = part.stat().st_size
    assert 100_000 <= there < len(BODY) and part.read_bytes() == BODY[:there]
    assert fetch(RemoteFile("a.gz", file.urls, None, checksum), tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz") == [None, f"bytes={there}-"]
    assert seen(tmp_path) == (["a.gz"] if known else ["SHA256SUMS", "a.gz"])


def test_two_at_once(server, file, tmp_path):
    """The second waits for the first and finds its file."""
    server.faults["/a.gz"] = [Fault(pause=0.02)]
    threads = [threading.Thread(target=fetch, args=(file, tmp_path)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "a.gz").read_bytes() == BODY and server.sent["/a.gz"] == len(BODY)
