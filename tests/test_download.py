"""Files over HTTP, from a server on this machine that goes wrong on demand."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from email.utils import formatdate
from itertools import repeat
from types import SimpleNamespace

import pytest

from deepnet_fairseq.data.remote import digest, disk, patience, progress, transfer
from deepnet_fairseq.data.remote.download import fetch, fetch_all
from deepnet_fairseq.data.remote.patience import Patience
from deepnet_fairseq.data.remote.source import RemoteFile
from deepnet_fairseq.errors import UserError

from .helpers import ROOT
from .loopback import Fault, serve

BODY = bytes(range(256)) * 4000  # 1,024,000 bytes
WRONG = BODY[:-1] + b"\0"
BUSY = Fault(status=503)
HASTY = Patience(first_wait=0.01, longest_wait=0.02)
IMPATIENT = dataclasses.replace(HASTY, read=0.7)
EVERY_OUTAGE = [Fault(after=300_000), Fault(after=200_000, then="reset"), Fault(after=100_000, then="stall")]


def sha256(body):
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(patience, "PATIENCE", HASTY)
    monkeypatch.delenv("DEEPNET_MIRROR", raising=False)


@pytest.fixture
def server():
    with serve({"/a.gz": BODY}) as running:
        yield running


@pytest.fixture
def file(server):
    return RemoteFile("a.gz", (server.url("/a.gz"),), len(BODY), sha256(BODY), "the publisher")


def seen(folder):
    """Names that do not start with a dot."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def gets(server):
    return [path for method, path, _ in server.asked if method == "GET"]


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


def test_md5(server, tmp_path):
    md5 = f"md5:{hashlib.md5(BODY).hexdigest()}"
    assert fetch(RemoteFile("a.gz", (server.url("/a.gz"),), checksum=md5), tmp_path).exists()
    with pytest.raises(UserError, match=f"is not the file meant, md5 {md5[4:]} instead of {'0' * 32}"):
        fetch(RemoteFile("a.gz", (server.url("/a.gz"),), checksum=f"md5:{'0' * 32}"), tmp_path)


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


def test_slow_server_finishes(server, file, tmp_path, monkeypatch):
    """Bytes in dribbles, over longer than the read timeout: no reason to give up."""
    monkeypatch.setattr(patience, "PATIENCE", IMPATIENT)
    server.faults["/a.gz"] = [Fault(piece=len(BODY) // 20 + 1, pause=0.05)]
    begun = time.monotonic()
    assert fetch(file, tmp_path).read_bytes() == BODY
    assert time.monotonic() - begun > IMPATIENT.read and server.ranges("/a.gz") == [None]


def test_dribbles_are_kept(server, file, tmp_path, monkeypatch):
    """A few bytes before a stall are on the disk and not asked for again: no buffer waits to be full."""
    monkeypatch.setattr(patience, "PATIENCE", IMPATIENT)
    server.faults["/a.gz"] = [Fault(after=7, piece=1, pause=0.01, then="stall")]
    assert fetch(file, tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz") == [None, "bytes=7-"]


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


def test_bad_part_is_mended(server, file, tmp_path):
    """A part that holds something else is spliced, noticed, and fetched anew from the only address."""
    (tmp_path / "a.gz.part").write_bytes(b"x" * 1000)
    assert fetch(file, tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz") == ["bytes=1000-", None]


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


def test_redirects_stay_on_http(server, file, tmp_path):
    server.faults["/there"] = [Fault(302, {"Location": "/a.gz"})]
    server.faults["/file"] = repeat(Fault(302, {"Location": f"file://{__file__}"}))
    server.files |= {"/there": b"", "/file": b""}
    there = RemoteFile("a.gz", (server.url("/there"),), len(BODY), sha256(BODY))
    assert fetch(there, tmp_path).read_bytes() == BODY
    with pytest.raises(UserError, match=r"No connection adapters"):
        fetch(RemoteFile("b", (server.url("/file"),)), tmp_path)


@pytest.mark.parametrize("name", ("", "..", "a/b", "../a", "/etc/a", "a\\b", ".hidden"))
def test_names_are_no_paths(name):
    with pytest.raises(UserError, match="is no name for a file"):
        RemoteFile(name, ("http://host/a",))


def test_fields_are_checked():
    for urls in ((), ("ftp://host/a",), ("file:///etc/passwd",), ("host/a",), ("http:///a",)):
        with pytest.raises(UserError, match="address"):
            RemoteFile("a", urls)
    for checksum in ("abc", "sha256:abc", f"md5:{'0' * 64}", f"sha1:{'0' * 40}"):
        with pytest.raises(UserError, match="is no checksum"):
            RemoteFile("a", ("http://host/a",), checksum=checksum)


def test_recorded_checksums(server, tmp_path):
    """The first download is recorded, in the format that sha256sum checks; every later one must be the same."""
    server.files |= {"/z": b"zz", "/b": b"bb"}
    files = [RemoteFile(name, (server.url(f"/{name}"),)) for name in ("z", "b")]
    fetch_all(files, tmp_path)
    assert [line[66:] for line in (tmp_path / "SHA256SUMS").read_text().splitlines()] == ["b", "z"]
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "b").unlink()
    server.files["/b"] = b"xx"
    with pytest.raises(UserError, match=f"instead of {sha256(b'bb')[7:]} .*SHA256SUMS"):
        fetch_all(files, tmp_path)
    assert not (tmp_path / "b").exists()
    (tmp_path / "b").write_bytes(b"by hand")
    with pytest.raises(UserError, match=r"b: is not the file meant"):
        fetch_all(files, tmp_path)
    trusted = RemoteFile("b", files[1].urls, checksum=sha256(b"by hand"))
    assert fetch(trusted, tmp_path).read_bytes() == b"by hand"


def test_by_hand_is_as_good(tmp_path):
    """What the error message asks for: the file laid into the folder, verified and, where need be, recorded."""
    (tmp_path / "a.gz").write_bytes(BODY)
    file = RemoteFile("a.gz", ("http://127.0.0.1:1/a.gz",), len(BODY), sha256(BODY))
    assert fetch(file, tmp_path) == tmp_path / "a.gz" and seen(tmp_path) == ["a.gz"]
    fetch(RemoteFile("a.gz", file.urls), tmp_path)
    assert (tmp_path / "SHA256SUMS").read_text() == f"{sha256(BODY)[7:]}  a.gz\n"


def test_two_files_of_one_name(file, tmp_path):
    with pytest.raises(UserError, match="one name"):
        fetch_all([file, file], tmp_path)


def test_mirror(server, tmp_path, monkeypatch):
    """MIRROR/HOST/PATH, named or from the environment; without SHA256SUMS the recipe's checksum counts."""
    server.files["/in/opus.nlpl.eu:8080/x/a%20b.gz?f=1"] = BODY
    file = RemoteFile("a.gz", ("https://opus.nlpl.eu:8080/x/a%20b.gz?f=1",), len(BODY), sha256(BODY))
    assert fetch(file, tmp_path / "1", server.url("/in/")).read_bytes() == BODY
    monkeypatch.setenv("DEEPNET_MIRROR", server.url("/in"))
    assert fetch(file, tmp_path / "2").read_bytes() == BODY
    server.files["/in/opus.nlpl.eu:8080/x/a%20b.gz?f=1"] = WRONG
    with pytest.raises(UserError, match=f"{sha256(WRONG)[7:]} instead of {sha256(BODY)[7:]}"):
        fetch(file, tmp_path / "3")


def test_mirror_with_miniatures(server, tmp_path):
    """Its SHA256SUMS replaces the recipe's checksum and size, is itself checked, and covers the files it names."""
    small = b"a few lines"
    server.files |= {"/m/host/a b.gz": small, "/m/host/a%20b.gz": small, "/m/host/c": BODY}
    server.files["/m/SHA256SUMS"] = f"{sha256(small)[7:]}  ./host/a b.gz\n".encode()
    file = RemoteFile("a.gz", ("https://host/a%20b.gz",), len(BODY), sha256(BODY))
    other = RemoteFile("c", ("https://gone/c", "https://host/c"), len(BODY), sha256(BODY))
    paths = fetch_all([file, other], tmp_path, server.url("/m"))
    assert paths["a.gz"].read_bytes() == small and paths["c"].read_bytes() == BODY
    server.files["/m/host/a%20b.gz"] = b"a few linez"
    with pytest.raises(UserError, match=f"instead of {sha256(small)[7:]}"):
        fetch(file, tmp_path / "again", server.url("/m"))
    server.files["/m/SHA256SUMS"] = b"not sums\n"
    with pytest.raises(UserError, match=r"SHA256SUMS, line 1"):
        fetch(file, tmp_path, server.url("/m"))


def test_mirror_that_is_none(tmp_path, file):
    with pytest.raises(UserError, match=r"mirror http://127\.0\.0\.1:1: .*DEEPNET_MIRROR"):
        fetch(file, tmp_path, "http://127.0.0.1:1")
    with pytest.raises(UserError, match="starts with http"):
        fetch(file, tmp_path, "/a/folder")


KILLED = """
import sys
from pathlib import Path
from deepnet_fairseq.data.remote.download import fetch
from deepnet_fairseq.data.remote.source import RemoteFile
url, checksum, folder = sys.argv[1:]
print("ready", flush=True)
fetch(RemoteFile("a.gz", (url,), None, checksum or None), Path(folder))
"""


@pytest.mark.parametrize("stop", (signal.SIGKILL, signal.SIGINT))
@pytest.mark.parametrize("known", (True, False), ids=("checksum", "etag"))
def test_killed_in_the_middle(stop, known, server, file, tmp_path):
    """Only the part is left, and the next call goes on where it ends."""
    server.headers["/a.gz"]["ETag"] = '"1"'
    server.faults["/a.gz"] = [Fault(piece=20_000, pause=0.05)]
    checksum = file.checksum if known else ""
    command = [sys.executable, "-c", KILLED, *file.urls, checksum, str(tmp_path)]
    restore = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, preexec_fn=restore)
    part = tmp_path / "a.gz.part"
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size >= 100_000):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(stop)
    assert process.wait(30) != 0
    assert seen(tmp_path) == ["a.gz.part"]
    there = part.stat().st_size
    assert 100_000 <= there < len(BODY) and part.read_bytes() == BODY[:there]
    assert fetch(RemoteFile("a.gz", file.urls, None, checksum or None), tmp_path).read_bytes() == BODY
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


def free(monkeypatch, size):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=size))


def test_space_is_looked_for_first(server, file, tmp_path, monkeypatch):
    """For all files together, less what their parts hold; the size of one is asked of the server."""
    server.files["/b"] = BODY
    files = [file, RemoteFile("b", (server.url("/b"),))]
    (tmp_path / "a.gz.part").write_bytes(BODY[:24_000])
    free(monkeypatch, 2_023_999)
    with pytest.raises(UserError, match=r"2 files: needs 2\.0 MB, .* has 2\.0 MB free; free some or name another"):
        fetch_all(files, tmp_path)
    assert gets(server) == [] and seen(tmp_path) == ["a.gz.part"]
    free(monkeypatch, 2_024_000)
    assert len(fetch_all(files, tmp_path)) == 2


def test_space_by_the_length_of_the_answer(server, tmp_path, monkeypatch):
    """Where HEAD is not answered."""
    server.no_head.add("/a.gz")
    free(monkeypatch, len(BODY) - 1)
    with pytest.raises(UserError, match=r"a\.gz: needs 1\.0 MB"):
        fetch(RemoteFile("a.gz", (server.url("/a.gz"),)), tmp_path)
    assert seen(tmp_path) == []
    free(monkeypatch, len(BODY))
    assert fetch(RemoteFile("a.gz", (server.url("/a.gz"),)), tmp_path).read_bytes() == BODY


def test_short_writes(file, tmp_path, monkeypatch):
    """A nearly full disk may take some of what it is given, without an error."""

    class Nearly(io.FileIO):
        def write(self, data):
            return super().write(data[:1000])

    monkeypatch.setattr(transfer, "open", lambda path, mode, buffering: Nearly(path, mode), raising=False)
    assert fetch(file, tmp_path).read_bytes() == BODY


def test_need_space_of_a_folder_to_be_made(tmp_path):
    there = shutil.disk_usage(tmp_path).free
    disk.need_space(tmp_path / "not" / "yet", there // 2, "it")
    with pytest.raises(UserError, match=r"^it: needs [\d,.]+ GB, .* has [\d,.]+ [GM]B free"):
        disk.need_space(tmp_path / "not" / "yet", there + 10**12, "it")


def test_full_disk(server, file, tmp_path):
    """The part is a link to /dev/full, which answers every write with ENOSPC."""
    (tmp_path / "a.gz.part").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"a\.gz\.part: could not be written \(No space left on device\); free some"):
        fetch(file, tmp_path)
    assert seen(tmp_path) == ["a.gz.part"]


def test_disk_full_halfway(server, file, tmp_path):
    """A limit on the size of files stands for the end of the disk: a short write, then an error. Then there is room."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_001, limits[1]))
    try:
        with pytest.raises(UserError, match=r"a\.gz\.part: could not be written \(File too large\); .*goes on where"):
            fetch(file, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert seen(tmp_path) == ["a.gz.part"] and (tmp_path / "a.gz.part").stat().st_size == 300_001
    assert fetch(file, tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz") == [None, "bytes=300001-"]


SMALL_DISK = """
import sys
from pathlib import Path
from deepnet_fairseq.data.remote.download import fetch
from deepnet_fairseq.data.remote.source import RemoteFile
from deepnet_fairseq.errors import UserError
url, folder = sys.argv[1:]
try:
    fetch(RemoteFile("a.gz", (url,)), Path(folder))
except UserError as error:
    print(error)
print(sorted(path.name for path in Path(folder).iterdir() if not path.name.startswith(".")))
"""


@pytest.mark.parametrize("told", (True, False), ids=("told", "untold"))
def test_small_disk(told, server, tmp_path):
    """A real file system of 400 kB: refused beforehand where the server tells the length, else it fills up."""
    mount = f"mount -t tmpfs -o size=400k none {tmp_path}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    if not told:
        server.no_length.add("/a.gz")
    command = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    command += [sys.executable, "-c", SMALL_DISK, server.url("/a.gz"), str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    line, names = result.stdout.splitlines()
    if told:
        assert re.match(r"a\.gz: needs 1\.0 MB, .* has 4\d\d\.\d kB free", line) and names == "[]"
    else:
        assert "could not be written (No space left on device)" in line and names == "['a.gz.part']"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bar_resumes_where_it_was(server, file, tmp_path, monkeypatch):
    """On a terminal one bar a file, which begins with what is there and counts no byte twice."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    bars = []
    monkeypatch.setattr(progress, "tqdm", type("Kept", (progress.tqdm,), {"__init__": kept_in(bars)}))
    (tmp_path / "a.gz.part").write_bytes(BODY[:512_000])
    server.faults["/a.gz"] = [Fault(after=100_000)]
    fetch(file, tmp_path)
    (bar,) = bars
    assert (bar.initial, bar.n, bar.total) == (512_000, len(BODY), len(BODY))
    assert " 50%|" in sys.stderr.getvalue() and "1.02M/1.02M" in sys.stderr.getvalue()


def kept_in(bars):
    def init(self, *args, **options):
        bars.append(self)
        super(type(self), self).__init__(*args, **options)

    return init


def test_lines_in_a_log(monkeypatch, capsys):
    """One a tenth or 30 s; a rate and the time left."""
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with progress.progress("a.gz", 10_000_000) as lines:
        for step in range(1, 1001):
            now[0] = step / 10
            lines.at(step * 10_000)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 10
    assert told[0] == "a.gz: 1.0 MB of 10.0 MB (10%), 100.0 kB/s, 90 s left"
    assert told[-1] == "a.gz: 10.0 MB of 10.0 MB (100%), 100.0 kB/s"
    with progress.progress("b", None) as lines:
        for step in range(100):
            now[0] += 1
            lines.at(step)
    assert len(capsys.readouterr().err.splitlines()) == 4  # three times 30 s, and the end


def test_digest_is_remembered_by_size_and_time(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"one")
    assert digest.digest(path) == hashlib.sha256(b"one").hexdigest()
    times = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digest.digest(path) == hashlib.sha256(b"one").hexdigest()  # the same size and time: not read again
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert digest.digest(path) == hashlib.sha256(b"two").hexdigest()
    digest.note_of(path).write_text("torn {")
    assert digest.digest(path, "md5") == hashlib.md5(b"two").hexdigest()
