"""Tests of archives: they unpack whole into their folder or not at all, and members are read line by line."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest

from deepnet_fairseq.data.archive import stream_lines, unpack
from deepnet_fairseq.errors import UserError

NOISE = np.random.default_rng(0).integers(0, 256, 5_000, dtype=np.uint8).tobytes()  # does not compress
LONG = b"short\n" + b"x" * 20_000_000
FILES = {"a/train.de": b"ein Satz\nnoch einer\n" * 40, "a/b/c": b"", "noise": NOISE, "block": b"x" * 512}


def make(path, *members):
    """Write a zip or tar of (name or TarInfo, bytes)."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for member, body in members:
                file.writestr(member, body)
        return path
    with tarfile.open(path, "w:gz") as tar:
        for member, body in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return path


def info(name, kind=tarfile.REGTYPE, target="", mode=0o644):
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, target, mode
    return member


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def everything(name):
    return True


@pytest.fixture
def room(tmp_path):
    """Provide an empty folder to unpack into; any new file beside it was written by an archive."""
    (tmp_path / "room").mkdir()
    return tmp_path / "room"


def refused(path, room, match):
    """Check that an archive is refused in one line that names it, and that no file is written."""
    before = content(room.parent)
    with pytest.raises(UserError, match=match) as caught:
        unpack(path, room / "dest", everything)
    assert str(caught.value).startswith(str(path.parent)) and "\n" not in str(caught.value)
    assert list(room.iterdir()) == [] and content(room.parent) == before


def test_what_is_wanted(tmp_path, room):
    """Unpacks only wanted members: others may be invalid, a leading ./ is ignored, and permissions are dropped."""
    path = make(
        tmp_path / "x.tgz", *FILES.items(), (info("./do", mode=0o6775), b"#!"), (info("d", tarfile.DIRTYPE), b"")
    )
    unpack(path, room / "made" / "dest", everything)
    assert content(room / "made" / "dest") == FILES | {"do": b"#!"}
    assert stat.S_IMODE((room / "made" / "dest" / "do").stat().st_mode) & 0o7111 == 0
    path = make(tmp_path / "x.tgz", *FILES.items(), (info("l", tarfile.SYMTYPE, "/etc"), b""), ("/etc/passwd", b"root"))
    unpack(path, room / "one", lambda name: name.endswith(".de"))
    assert content(room / "one") == {"a/train.de": FILES["a/train.de"]}
    with pytest.raises(UserError, match="holds none of the files wanted"):
        unpack(path, room / "none", lambda name: name == "other")
    assert sorted(path.name for path in room.iterdir()) == ["made", "one"]


def test_no_archive(tmp_path, room):
    refused(tmp_path / "gone.tgz", room, "fetch it first")
    for name in ("x.tgz", "x.zip"):
        (tmp_path / name).write_bytes(b"<!DOCTYPE html>")
    refused(tmp_path / "x.tgz", room, "cannot be unpacked .*; remove it and fetch it again")
    with pytest.raises(UserError, match="cannot be unpacked .*; remove it and fetch it again"):
        next(stream_lines(tmp_path / "x.zip", "a"))


def read(path):
    """Read an archive: the files of a tar, or the lines of a zip's members."""
    if path.suffix == ".zip":
        return [list(stream_lines(path, name)) for name in FILES]
    dest = path.parent / "dest"
    shutil.rmtree(dest, ignore_errors=True)
    unpack(path, dest, everything)
    return content(dest)


@pytest.mark.parametrize("name", ("x.tar.gz", "x.zip"))
def test_cut_anywhere_or_one_wrong_byte(name, tmp_path):
    """Truncated archives are refused; a wrong byte is noticed unless it changes nothing, such as a time stamp."""
    files = FILES | {"noise": NOISE.hex().encode()}
    path = make(tmp_path / name, *files.items())
    body, whole = path.read_bytes(), read(path)
    for end in range(0, len(body), len(body) // 60):
        path.write_bytes(body[:end])
        with pytest.raises(UserError, match="x\\.[^ ]*: (cannot be unpacked|holds)"):
            read(path)
    noticed = 0
    for at in range(0, len(body), len(body) // 60):
        path.write_bytes(body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :])
        try:
            assert read(path) == whole, at
        except UserError:
            noticed += 1
    assert noticed > 50


@pytest.mark.parametrize("kind", (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE))
def test_links_and_devices(kind, tmp_path, room):
    """Links and device files are refused: corpora have none, and path attacks on unpackers use them."""
    path = make(tmp_path / "x.tgz", ("file", b"1"), (info("odd", kind, "file"), b""), ("odd/through", b"2"))
    refused(path, room, "'odd' is no ordinary file")


@pytest.mark.parametrize("name", ("../evil", "a/../../evil", "/evil", "x" * 300))
def test_names_that_lead_elsewhere(name, tmp_path, room):
    """Names that point outside are refused or stay in the folder; a refused archive writes nothing."""
    path = make(tmp_path / "x.tgz", (info(name), b"text"))
    try:
        unpack(path, room / "dest", everything)
    except UserError as error:
        assert "x.tgz: '" in str(error) and "\n" not in str(error) and list(room.iterdir()) == []
    assert all(name.startswith("room/dest/") for name in content(tmp_path).keys() - {"x.tgz"})


def test_bomb(tmp_path, room, monkeypatch):
    """Refuses an archive of 30 MB of zeros in less than 60 kB when the disk has 20 MB free."""
    path = make(tmp_path / "bomb.tgz", ("fine", b"fine"), ("zeros", b"\0" * 30_000_000))
    assert path.stat().st_size < 60_000
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=20_000_000))
    refused(path, room, r"bomb\.tgz: needs 30\.0MB, .* has 20\.0MB free")


@pytest.mark.parametrize("name", ("x.tgz", "x.zip"))
def test_lines_of_a_member(name, tmp_path):
    """Lines end with \n only: parallel text has other Unicode separators within sentences."""
    lines = ["ein Satz", "", "a\u2028b\x85c\x0bd\re", "größer", "last"]
    path = make(tmp_path / name, ("a", b"x\n"), ("d/text", "\n".join(lines).encode()), ("z", NOISE), ("long", LONG))
    assert list(stream_lines(path, "d/text")) == lines
    for wrong, message in (
        ("d/other", "d/other"),
        ("z", "z, line 1: not UTF-8"),
        ("long", "long, line 2: is longer than 16"),
    ):
        with pytest.raises(UserError, match=message):
            list(stream_lines(path, wrong))


def test_lines_stream(tmp_path):
    """Lines before a truncation are read, then a UserError follows."""
    path = make(tmp_path / "x.tgz", ("t", b"a line of text, some\n" * 500_000))
    os.truncate(path, path.stat().st_size - 2000)
    lines = stream_lines(path, "t")
    assert next(lines) == "a line of text, some"
    with pytest.raises(UserError, match="cannot be unpacked"):
        list(lines)
