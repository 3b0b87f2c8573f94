"""Tests of downloads from a local server that fails on demand: files are whole and verified, or absent."""

from __future__ import annotations

import errno
import gzip
import hashlib
import re
import resource
import shutil
import subprocess
from itertools import repeat
from types import SimpleNamespace

import pytest

from deepnet_fairseq.data import download
from deepnet_fairseq.data.download import RemoteFile, fetch_all, recorded_sums
from deepnet_fairseq.data.folder import need_space
from deepnet_fairseq.errors import UserError

from ..support.loopback import Fault, serve

BODY = bytes(range(256)) * 4000  # 1,024,000 bytes
WRONG = BODY[:-1] + b"\0"
GZ = gzip.compress(BODY)
BUSY = Fault(status=503)


def sha256(body):
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(download, "WAIT", 0.01)
    monkeypatch.setattr(download, "TIMEOUT", (2, 0.7))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server():
    with serve({"/a.gz": BODY}) as running:
        yield running


@pytest.fixture
def file(server):
    return RemoteFile("a.gz", (server.url("/a.gz"),), len(BODY), sha256(BODY), "the publisher")


def fetch(file, folder):
    return fetch_all([file], folder)[file.name]


def seen(folder):
    """Return the names in a folder that do not start with a dot."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_whole_and_only_once(server, file, tmp_path, capsys):
    """A download shows a bar and runs once; a changed file is noticed and left alone."""
    path = fetch(file, tmp_path / "new" / "folder")
    assert re.search(r"a\.gz: 100%.* 1\.02M/1\.02M", capsys.readouterr().err)
    assert path.read_bytes() == BODY and path.name == "a.gz" and seen(path.parent) == ["a.gz"]
    assert [headers["Accept-Encoding"] for _, headers in server.asked] == ["identity"]
    path.parent.chmod(0o500)  # for example a shared folder
    assert fetch(file, path.parent) == path and len(server.asked) == 1
    path.write_bytes(WRONG)
    with pytest.raises(UserError, match=r"a\.gz: is not the file meant, sha256 .* \(the publisher\); remove it"):
        fetch(file, path.parent)
    assert path.read_bytes() == WRONG and len(server.asked) == 1


@pytest.mark.parametrize("then", ("close", "reset", "stall"))
def test_broken_transfers_resume(then, server, file, tmp_path):
    """Transfers that are truncated, reset or stalled resume at their last byte, as long as each adds bytes."""
    server.faults["/a.gz"] = [Fault(after=300_000, then=then)] * 2 + [Fault(after=30_000)] * 8
    assert fetch(file, tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz")[:4] == [None, "bytes=300000-", "bytes=600000-", "bytes=630000-"]
    assert server.sent["/a.gz"] <= len(BODY) and seen(tmp_path) == ["a.gz"]


def test_server_that_starts_over_ends(server, file, tmp_path):
    """A server without ranges that breaks off at the same byte is given up after 7 attempts."""
    server.ignores.add("Range")
    server.faults["/a.gz"] = repeat(Fault(after=300_000))
    with pytest.raises(UserError, match=r"a\.gz: no address gives it .*IncompleteRead\(300000 .*6 times in a row"):
        fetch(file, tmp_path)
    assert len(server.ranges("/a.gz")) == 7 and seen(tmp_path) == ["a.gz.part"]
    server.faults["/a.gz"] = ()
    assert fetch(file, tmp_path).read_bytes() == BODY  # the answer to a Range is 200, so nothing is spliced


def test_busy_then_fine_and_busy_for_ever(server, file, tmp_path):
    server.faults["/a.gz"] = [Fault(status=status) for status in (408, 429, 500, 502, 504)]
    assert fetch(file, tmp_path / "fine").read_bytes() == BODY
    server.faults["/a.gz"] = [BUSY] * 6
    with pytest.raises(UserError, match="503 Service Unavailable"):
        fetch(file, tmp_path / "busy")
    assert len(server.asked) == 12 and seen(tmp_path / "busy") == []


def test_no_address_gives_it(server, tmp_path):
    """Every address is tried, then one line lists each with its reason and the way out."""
    server.faults["/a.gz"] = repeat(Fault(status=410))
    server.faults["/away"] = [Fault(302, {"Location": "http://[x/"})]
    server.files |= {"/page": b"\n<!DOCTYPE HTML>", "/torn": GZ[:-9], "/b": WRONG, "/c": BODY}
    reasons = {
        server.url("/a.gz"): "410 Gone",
        server.url("/none"): "404 Not Found",
        "http://127.0.0.1:1/a.gz": f"[Errno {errno.ECONNREFUSED}] Connection refused",
        server.url("/page"): "a web page instead of the file",
        server.url("/torn"): "no archive that unpacks (Compressed file ended",
        "http://[x": "no address (",
        server.url("/away"): "no address (",
    }
    with pytest.raises(UserError) as caught:
        fetch(RemoteFile("a.gz", tuple(reasons)), tmp_path)
    line = str(caught.value)
    assert "\n" not in line and line.startswith("a.gz: ") and f"by hand into {tmp_path} under this name" in line
    assert [url for url, reason in reasons.items() if f"{url}: {reason}" not in line] == [] == seen(tmp_path)
    server.files["/page"] = GZ  # the web page's checksum was not recorded
    assert fetch(RemoteFile("a.gz", (server.url("/page"),)), tmp_path / "right").read_bytes() == GZ
    fetched = fetch(RemoteFile("a.gz", tuple(map(server.url, ("/a.gz", "/b", "/c"))), None, sha256(BODY)), tmp_path)
    assert fetched.read_bytes() == BODY and server.ranges("/c") == [None]


def test_wrong_content_and_wrong_size(server, file, tmp_path):
    """Wrong content or size is refused in one line with the expected and found values; no file stays."""
    server.files["/a.gz"] = WRONG
    with pytest.raises(UserError) as caught:
        fetch(file, tmp_path)
    assert f"{sha256(WRONG)[7:]} instead of {sha256(BODY)[7:]} (the publisher)" in str(caught.value)
    with pytest.raises(UserError, match=f"{len(BODY):,} bytes instead of 0"):
        fetch(RemoteFile("a.gz", file.urls, 0), tmp_path)
    assert seen(tmp_path) == []
    md5 = f"md5:{hashlib.md5(WRONG).hexdigest()}"
    assert fetch(RemoteFile("a.gz", file.urls, checksum=md5), tmp_path).read_bytes() == WRONG


def test_bad_part_is_mended(server, file, tmp_path):
    """A part file with wrong content, or a wrong range in the answer, is noticed and fetched anew."""
    part = tmp_path / "a.gz.part"
    part.write_bytes(b"x" * 1000)
    assert fetch(file, tmp_path).read_bytes() == BODY
    (tmp_path / "a.gz").unlink()
    part.write_bytes(BODY[:1000])
    server.faults["/a.gz"] = [Fault(206, {"Content-Range": f"bytes 5-{len(BODY) - 1}/{len(BODY)}"})]
    assert fetch(file, tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz") == ["bytes=1000-", None, "bytes=1000-", None]


@pytest.mark.parametrize("heeded", (True, False))
def test_changed_file_is_not_spliced(heeded, server, tmp_path):
    """A file that changed on the server is not spliced, even without a known checksum: If-Range sends the ETag.

    A server that ignores If-Range is recognised by the new ETag.
    """
    server.headers["/a.gz"]["ETag"] = '"1"'
    file = RemoteFile("a", (server.url("/a.gz"),))
    server.faults["/a.gz"] = [Fault(after=300_000), *[BUSY] * 6]
    with pytest.raises(UserError):
        fetch(file, tmp_path)
    assert (tmp_path / "a.part").stat().st_size == 300_000
    server.files["/a.gz"], server.headers["/a.gz"]["ETag"] = WRONG[::-1], '"2"'
    server.ignores |= set() if heeded else {"If-Range"}
    before = len(server.ranges("/a.gz"))
    assert fetch(file, tmp_path).read_bytes() == WRONG[::-1]
    assert server.ranges("/a.gz")[before:] == ["bytes=300000-", None][: 1 if heeded else 2]
    assert [headers.get("If-Range") for _, headers in server.asked if "Range" in headers][-1] == '"1"'


def test_part_that_is_whole_or_too_long(server, file, tmp_path):
    """A complete part file is verified without a transfer (status 416); one that is too long is fetched anew."""
    for part, sent in ((BODY, 0), (BODY + b"more", 1)):
        for size in (None, len(BODY)):
            (tmp_path / "a.gz").unlink(missing_ok=True)
            (tmp_path / "a.gz.part").write_bytes(part)
            server.sent.clear()
            assert fetch(RemoteFile("a.gz", file.urls, size, sha256(BODY)), tmp_path).read_bytes() == BODY
            assert server.sent["/a.gz"] == sent * len(BODY)


def test_recorded_checksums(server, tmp_path):
    """Checksums of first downloads are recorded in sha256sum's format, and later downloads must match."""
    server.files |= {"/z": b"zz", "/b": b"bb"}
    files = [RemoteFile(name, (server.url(f"/{name}"),)) for name in ("z", "b")]
    fetch_all(files, tmp_path)
    assert list(recorded_sums(tmp_path)) == ["b", "z"]
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "b").unlink()
    server.files["/b"] = b"xx"
    with pytest.raises(UserError, match=f"instead of {sha256(b'bb')[7:]} .*SHA256SUMS"):
        fetch_all(files, tmp_path)
    (tmp_path / "b").write_bytes(b"by hand")  # the message asks for a file, and this is a wrong one
    with pytest.raises(UserError, match=r"b: is not the file meant"):
        fetch_all(files, tmp_path)
    (tmp_path / "SHA256SUMS").write_text("not sums\n")
    with pytest.raises(UserError, match=r"SHA256SUMS, line 1: is not `SHA256  NAME`"):
        fetch_all(files, tmp_path)
    (tmp_path / "c").mkdir()
    with pytest.raises(UserError, match="c: is not the file meant, no ordinary file"):
        fetch(RemoteFile("c", files[0].urls, checksum=sha256(b"")), tmp_path)


def test_space_is_looked_for_first(server, file, tmp_path, monkeypatch):
    """Free space is checked before the transfer, for all files less their part files, or by the answer's length."""
    files = [file, RemoteFile("b", (server.url("/a.gz"),), len(BODY), sha256(BODY))]
    (tmp_path / "a.gz.part").write_bytes(BODY[:24_000])
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=2_023_999))
    with pytest.raises(UserError, match=r"download: needs 2\.02MB, .* has 2\.02MB free; free some or name another"):
        fetch_all(files, tmp_path)
    assert server.asked == [] and seen(tmp_path) == ["a.gz.part"]
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=len(BODY) - 1))
    with pytest.raises(UserError, match=r"c: needs 1\.02MB"):
        fetch(RemoteFile("c", file.urls), tmp_path)
    need_space(tmp_path / "not" / "yet", len(BODY) - 1, "it")


def test_disk_full_halfway(server, file, tmp_path):
    """A download that fills the disk, imitated by a limit on file sizes, resumes when there is space again."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_001, limits[1]))
    try:
        with pytest.raises(UserError, match=r"a\.gz\.part: could not be written \(File too large\); .*goes on where"):
            fetch(file, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    there = (tmp_path / "a.gz.part").stat().st_size
    assert 0 < there <= 300_001 and fetch(file, tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz") == [None, f"bytes={there}-"]
