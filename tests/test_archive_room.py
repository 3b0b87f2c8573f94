"""Archives that are too big for the disk, or line by line without unpacking."""

from __future__ import annotations

import gzip
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from deepnet_fairseq.data.remote import archive as archives
from deepnet_fairseq.data.remote.archive import stream_lines, unpack
from deepnet_fairseq.errors import UserError

from .support.archives import FILES, NOISE, TARS, a_room, content, make, make_zip, refused  # noqa: F401


def free(monkeypatch, size):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=size))


@pytest.mark.parametrize("name", ("bomb.tar.gz", "bomb.zip", "bomb.gz"))
def test_bombs(name, tmp_path, room, monkeypatch):
    """100 MB of zeros in less than 200 kB, on a disk with 20 MB: refused by what is declared, or what comes out."""
    path, zeros, written = tmp_path / name, b"\0" * 100_000_000, []
    if name == "bomb.gz":
        path.write_bytes(gzip.compress(zeros))
    else:
        make(path, ("fine", b"fine"), ("zeros", zeros))
    assert path.stat().st_size < 200_000
    free(monkeypatch, 20_000_000)
    take = archives._Unpacking._take
    monkeypatch.setattr(
        archives._Unpacking, "_take", lambda self, size, *rest: written.append(size) or take(self, size, *rest)
    )
    match = r"needs 100\.0 MB" if name == "bomb.zip" else r"unpacks to more than the 20\.0 MB free"
    refused(path, room, match)
    assert sum(written) <= (21_000_000 if name == "bomb.gz" else 4)


def test_zip_that_lies_about_its_size(tmp_path, room, monkeypatch):
    """10 MB said to be 1 kB: no more than is said comes out, and the checksum tells."""
    body = make_zip(tmp_path / "x.zip", ("zeros", b"\0" * 10_000_000)).read_bytes()
    (tmp_path / "x.zip").write_bytes(body.replace((10_000_000).to_bytes(4, "little"), (1000).to_bytes(4, "little")))
    free(monkeypatch, 1_000_000)
    refused(tmp_path / "x.zip", room, "cannot be unpacked")


@pytest.mark.parametrize("name", ("x.tar.gz", "x.zip"))
def test_disk_full_halfway(name, tmp_path, room):
    """A limit on the size of files stands for the end of the disk."""
    path = make(tmp_path / name, *FILES.items(), ("more", NOISE * 100))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"more: could not be written \(File too large\); free some"):
            unpack(path, room / "dest")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(room.iterdir()) == []
    assert len(content(unpack(path, room / "dest"))) == 5


@pytest.mark.parametrize("name", (*TARS, "x.zip"))
def test_lines_of_a_member(name, tmp_path):
    """Only \\n ends a line: parallel text has other separators of Unicode within sentences."""
    lines = ["ein Satz", "", "a\u2028b\x85c\x0bd\re", "größer", "last"]
    path = make(tmp_path / name, ("./a", b"x\n"), ("d/text", "\n".join(lines).encode()), ("z", NOISE))
    assert list(stream_lines(path, "d/text")) == lines
    assert list(stream_lines(path, "a")) == ["x"]
    with pytest.raises(UserError, match="holds no d/other"):
        list(stream_lines(path, "d/other"))
    with pytest.raises(UserError, match="z is no UTF-8"):
        list(stream_lines(path, "z"))


def test_lines_of_a_compressed_file_cut_short(tmp_path):
    """The lines before the break come, then a UserError: no one takes them for all."""
    (tmp_path / "t.de.gz").write_bytes(gzip.compress(b"a line\n" * 500_000)[:-2000])
    lines = stream_lines(tmp_path / "t.de.gz", "t.de")
    assert next(lines) == "a line"
    with pytest.raises(UserError, match=r"t\.de\.gz: cannot be unpacked"):
        list(lines)


def test_lines_stream(tmp_path):
    """40 MB of text, by a process that grows by less than half of that."""
    with gzip.open(tmp_path / "t.gz", "wb", 1) as file:
        for _ in range(40):
            file.write(b"a line of text, some\n" * 50_000)
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from deepnet_fairseq.data.remote.archive import stream_lines\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(sum(1 for _ in stream_lines(Path(sys.argv[1]), 't')))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-c", code, str(tmp_path / "t.gz")]
    lines, kilobytes = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split()
    assert int(lines) == 2_000_000 and int(kilobytes) < 20_000
