"""Disks without room, before a download and in its middle."""

from __future__ import annotations

import io
import re
import resource
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from deepnet_fairseq.data.remote import disk, transfer
from deepnet_fairseq.data.remote.download import fetch, fetch_all
from deepnet_fairseq.data.remote.source import RemoteFile
from deepnet_fairseq.errors import UserError

from .support.fetching import BODY, a_file, a_server, gets, hasty, seen  # noqa: F401
from .support.helpers import ROOT


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
