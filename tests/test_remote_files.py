"""What a file must be, by its recipe, its mirror, or its first download."""

from __future__ import annotations

import hashlib
import os
import subprocess

import pytest

from deepnet_fairseq.data.remote import digest
from deepnet_fairseq.data.remote.download import fetch, fetch_all
from deepnet_fairseq.data.remote.source import RemoteFile
from deepnet_fairseq.errors import UserError

from .support.fetching import BODY, WRONG, a_file, a_server, hasty, seen, sha256  # noqa: F401


def test_md5(server, tmp_path):
    md5 = f"md5:{hashlib.md5(BODY).hexdigest()}"
    assert fetch(RemoteFile("a.gz", (server.url("/a.gz"),), checksum=md5), tmp_path).exists()
    with pytest.raises(UserError, match=f"is not the file meant, md5 {md5[4:]} instead of {'0' * 32}"):
        fetch(RemoteFile("a.gz", (server.url("/a.gz"),), checksum=f"md5:{'0' * 32}"), tmp_path)


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
