"""Archives: whole in their folder, or nothing at all."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import stat
import subprocess

import pytest

from deepnet_fairseq.data.remote import archive as archives
from deepnet_fairseq.data.remote.archive import unpack
from deepnet_fairseq.errors import UserError

from .support.archives import FILES, NOISE, TARS, a_room, content, make, refused  # noqa: F401


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


def test_progress_of_a_big_archive(tmp_path, room, monkeypatch, capsys):
    monkeypatch.setattr(archives, "BIG", 1000)
    path = make(tmp_path / "x.zip", *FILES.items())
    unpack(path, room / "dest")
    assert "x.zip: " in capsys.readouterr().err
