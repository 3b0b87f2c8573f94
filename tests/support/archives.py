"""Archives made for tests, and a room in which nothing may be left of a bad one."""

from __future__ import annotations

import io
import tarfile
import zipfile

import numpy as np
import pytest

from deepnet_fairseq.data.remote.archive import unpack
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


@pytest.fixture(name="room")
def a_room(tmp_path):
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
