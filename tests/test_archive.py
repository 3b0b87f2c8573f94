"""Archives: whole and inside their folder, or nothing at all."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import resource
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from deepnet_fairseq.data.remote import archive as archives
from deepnet_fairseq.data.remote.archive import stream_lines, unpack
from deepnet_fairseq.errors import UserError

NOISE = np.random.default_rng(0).integers(0, 256, 5_000, dtype=np.uint8).tobytes()  # which nothing compresses
FILES = {"a/train.de": b"ein Satz\nnoch einer\n" * 40, "a/b/c": b"", "noise": NOISE, "block": b"x" * 512}
TARS = ("x.tar", "x.tar.gz", "x.tgz", "x.tar.bz2", "x.tar.xz")


def make_tar(path, *members):
    """members: (name or TarInfo, bytes); the compression by the path's ending."""
    mode = {".gz": "w:gz", ".tgz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as tar:
        for member, body in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return path


def make_zip(path, *members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for member, body in members:
            file.writestr(member, body)
    return path


def make(path, *members):
    return (make_zip if path.suffix == ".zip" else make_tar)(path, *members)


def tar_info(name, kind=tarfile.REGTYPE, target="", mode=0o644):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    return info


def zip_info(name, mode):
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, mode << 16
    return info


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def room(tmp_path):
    """A folder with nothing but a folder to unpack into; what is beside it afterwards came from an archive."""
    (tmp_path / "room").mkdir()
    return tmp_path / "room"


def refused(path, room, match):
    """UserError in one line that names the archive, and nothing anywhere."""
    before = content(room.parent)
    with pytest.raises(UserError, match=match) as caught:
        unpack(path, room / "dest")
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
    assert list(room.iterdir()) == [] and content(room.parent) == before


@pytest.mark.parametrize("name", (*TARS, "x.zip"))
def test_formats(name, tmp_path, room):
    path = make(tmp_path / name, *FILES.items())
    assert unpack(path, room / "made" / "dest") == room / "made" / "dest"
    assert content(room / "made" / "dest") == FILES and [each.name for each in room.iterdir()] == ["made"]


@pytest.mark.parametrize("compress", (gzip, bz2, lzma), ids=("gz", "bz2", "xz"))
def test_one_compressed_file(compress, tmp_path, room):
    ending = {gzip: "gz", bz2: "bz2", lzma: "xz"}[compress]
    path = tmp_path / f"train.de.{ending}"
    path.write_bytes(compress.compress(FILES["a/train.de"]) + compress.compress(NOISE))  # two streams are one file
    assert content(unpack(path, room / "dest")) == {"train.de": FILES["a/train.de"] + NOISE}


def test_archive_of_gnu_tar(tmp_path, room):
    """Long names, ./ at the start, links, a sparse file, a program, as the system's tar writes them."""
    source = tmp_path / "source" / ("long" * 30)
    source.mkdir(parents=True)
    (source / "text").write_text("a\n")
    (source / "program").write_text("#!/bin/sh\n")
    (source / "program").chmod(0o755)
    os.link(source / "text", source / "same")
    (source / "link").symlink_to("../" + "long" * 30 + "/text")
    with open(source / "sparse", "wb") as file:
        file.seek(1_000_000)
        file.write(b"end")
    command = ["tar", "--sparse", "-czf", tmp_path / "x.tar.gz", "-C", source.parent, "."]
    subprocess.run(command, check=True)
    dest = unpack(tmp_path / "x.tar.gz", room / "dest")
    assert content(dest) == content(source.parent)
    found = dest / source.name
    assert os.readlink(found / "link") == os.readlink(source / "link") and (found / "link").read_text() == "a\n"
    assert os.access(found / "program", os.X_OK) and not stat.S_IMODE((found / "text").stat().st_mode) & 0o111


def test_wanted(tmp_path, room):
    """Only what is asked for; what is not wanted may even be bad."""
    seen = []
    for name in ("x.tar.gz", "x.zip"):
        path = make(tmp_path / name, *FILES.items(), ("/etc/passwd", b"root"))
        dest = unpack(path, room / name, lambda name: seen.append(name) or name.endswith(".de"))
        assert content(dest) == {"a/train.de": FILES["a/train.de"]} and "a/b/c" in seen
        with pytest.raises(UserError, match="holds none of the files wanted"):
            unpack(path, room / "none", lambda name: name == "other")
    assert sorted(path.name for path in room.iterdir()) == ["x.tar.gz", "x.zip"]


def test_dest_must_be_new(tmp_path, room):
    path = make(tmp_path / "x.zip", *FILES.items())
    (room / "dest").mkdir()
    assert content(unpack(path, room / "dest")) == FILES
    with pytest.raises(UserError, match="dest: is there and not empty"):
        unpack(path, room / "dest")
    assert content(room / "dest") == FILES


def test_no_archive(tmp_path, room):
    refused(tmp_path / "gone.zip", room, "fetch it first")
    (tmp_path / "x.rar").write_bytes(NOISE)
    refused(tmp_path / "x.rar", room, r"known are \.tar")
    for name in (*TARS, "x.zip", "x.gz", "x.bz2", "x.xz"):
        for body in (NOISE, b"<!DOCTYPE html>", b""):
            (tmp_path / name).write_bytes(body)
            refused(tmp_path / name, room, "(cannot be unpacked|is empty).*; remove it and fetch it again")


@pytest.mark.parametrize("name", ("../evil", "a/../../evil", "/tmp/evil", "//evil", "..", "a/..", "./../evil"))
@pytest.mark.parametrize("ending", ("tar.gz", "zip"))
def test_paths_that_leave(name, ending, tmp_path, room):
    path = make(tmp_path / f"x.{ending}", ("fine", b"fine"), (name, b"evil"))
    refused(path, room, f"'{name}' lies outside the folder")


@pytest.mark.parametrize(
    "links",
    (
        {"l": "/etc"},
        {"l": ".."},
        {"l": "../room"},
        {"a/l": "../../x"},
        {"a/l": "../a/../../x"},
        {"d": ".", "l": "d/.."},  # inside by its letters, outside once d is followed
        {"a/d": "..", "a/l": "d/.."},
    ),
)
def test_links_that_leave(links, tmp_path, room):
    members = [(tar_info(name, tarfile.SYMTYPE, target), b"") for name, target in links.items()]
    refused(make_tar(tmp_path / "x.tar", ("a/b/c", b""), *members), room, "is a link to .* outside the folder")
    members = [(zip_info(name, stat.S_IFLNK | 0o777), target) for name, target in links.items()]
    refused(make_zip(tmp_path / "x.zip", ("a/b/c", b""), *members), room, "is a link to .* outside the folder")


@pytest.mark.parametrize("later", ("l", "l/evil", "l/a/evil"))
@pytest.mark.parametrize("kind", (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE))
def test_nothing_is_written_through_a_link(later, kind, tmp_path, room):
    """Even one that stays inside: it would be another path than the archive says."""
    if (later, kind) == ("l", tarfile.SYMTYPE):
        pytest.skip("the second link takes the place of the first")
    first = (tar_info("l", tarfile.SYMTYPE, "."), b"")
    path = make_tar(tmp_path / "x.tar", ("a/b", b""), first, (tar_info(later, kind, "b"), b""))
    refused(path, room, "is a link and something else too")


def test_links_inside_are_kept(tmp_path, room):
    links = {"a/up": "../noise", "down": "a/b", "over": "down/c", "nowhere": "gone"}
    members = [(tar_info(name, tarfile.SYMTYPE, target), b"") for name, target in links.items()]
    dest = unpack(make_tar(tmp_path / "x.tar", *members, *FILES.items()), room / "dest")
    assert {name: os.readlink(dest / name) for name in links} == links
    assert (dest / "a" / "up").read_bytes() == NOISE and (dest / "over").read_bytes() == b""


@pytest.mark.parametrize("target", ("/etc/passwd", "../beside", "gone", "l", "sym"))
def test_hard_links_that_leave(target, tmp_path, room):
    """Only to a file unpacked before: neither outside, nor to a symbolic link, which could lead there."""
    (tmp_path / "beside").write_bytes(b"private")
    members = (tar_info("sym", tarfile.SYMTYPE, "file"), b""), (tar_info("l", tarfile.LNKTYPE, target), b"")
    path = make_tar(tmp_path / "x.tar", ("file", b"1"), *members)
    refused(path, room, "'l' is a link to .* no file unpacked before")


def test_file_over_a_hard_link(tmp_path, room):
    """The last of a name counts, and the file it was linked to stays as it is."""
    hard = (tar_info("l", tarfile.LNKTYPE, "file"), b"")
    dest = unpack(make_tar(tmp_path / "x.tar", ("file", b"1"), hard, ("l", b"2")), room / "dest")
    assert content(dest) == {"file": b"1", "l": b"2"}


@pytest.mark.parametrize("kind", (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE))
def test_devices(kind, tmp_path, room):
    refused(make_tar(tmp_path / "x.tar", (tar_info("null", kind), b"")), room, "'null' is neither file nor folder")
    mode = {tarfile.CHRTYPE: stat.S_IFCHR, tarfile.BLKTYPE: stat.S_IFBLK, tarfile.FIFOTYPE: stat.S_IFIFO}[kind]
    refused(make_zip(tmp_path / "x.zip", (zip_info("null", mode), b"")), room, "'null' is neither file nor folder")


@pytest.mark.parametrize("mode", (0o4755, 0o2755, 0o6711))
def test_setuid(mode, tmp_path, room):
    refused(make_tar(tmp_path / "x.tar", (tar_info("su", mode=mode), b"")), room, "'su' would run as another user")
    refused(make_zip(tmp_path / "x.zip", (zip_info("su", stat.S_IFREG | mode), b"")), room, "would run as another user")


def test_folder_of_a_group(tmp_path, room):
    """setgid on a folder, as shared folders have it, is harmless and left out."""
    dest = unpack(make_tar(tmp_path / "x.tar", (tar_info("d", tarfile.DIRTYPE, mode=0o2777), b"")), room / "dest")
    assert stat.S_IMODE((dest / "d").stat().st_mode) & (stat.S_ISGID | stat.S_IWOTH) == 0


@pytest.mark.parametrize("clash", (("a", "a/b"), ("a/b", "a")))
def test_file_and_folder_of_one_name(clash, tmp_path, room):
    path = make_tar(tmp_path / "x.tar", *((name, b"") for name in clash))
    with pytest.raises(UserError, match="could not be written"):
        unpack(path, room / "dest")
    assert list(room.iterdir()) == []


@pytest.mark.parametrize("name", (*TARS, "x.zip"))
def test_cut_anywhere(name, tmp_path, room):
    """Nothing, or, where only the padding at the end is gone, everything; never a part of it."""
    body = make(tmp_path / name, *FILES.items()).read_bytes()
    outcomes = []
    for end in sorted({*range(0, len(body), len(body) // 60), *range(0, len(body), 512)}):
        (tmp_path / name).write_bytes(body[:end])
        try:
            dest = unpack(tmp_path / name, room / "dest")
        except UserError:
            outcomes.append(False)
        else:
            assert content(dest) == FILES, end
            shutil.rmtree(dest)
            outcomes.append(True)
        assert list(room.iterdir()) == []
    whole = [index for index, fine in enumerate(outcomes) if fine]
    assert len(outcomes) > 30 and whole == list(range(len(outcomes) - len(whole), len(outcomes)))
    assert not whole or name == "x.tar"


@pytest.mark.parametrize("name", ("x.tar.gz", "x.tar.bz2", "x.tar.xz", "x.zip"))
def test_one_wrong_byte(name, tmp_path, room):
    """Every format with a checksum notices, or what is wrong does not matter (a time, say)."""
    body = bytearray(make(tmp_path / name, *FILES.items()).read_bytes())
    noticed = 0
    for at in range(0, len(body), len(body) // 60):
        body[at] ^= 0xFF
        (tmp_path / name).write_bytes(body)
        body[at] ^= 0xFF
        try:
            dest = unpack(tmp_path / name, room / "dest")
        except UserError:
            noticed += 1
        else:
            assert content(dest) == FILES, at
            shutil.rmtree(dest)
        assert list(room.iterdir()) == []
    assert noticed > 50


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


def test_progress_of_a_big_archive(tmp_path, room, monkeypatch, capsys):
    monkeypatch.setattr(archives, "BIG", 1000)
    path = make(tmp_path / "x.zip", *FILES.items())
    unpack(path, room / "dest")
    assert "x.zip: " in capsys.readouterr().err
