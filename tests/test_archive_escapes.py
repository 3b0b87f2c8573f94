"""Archives that would write outside their folder, or something that is no file."""

from __future__ import annotations

import os
import stat
import tarfile

import pytest

from deepnet_fairseq.data.remote.archive import unpack
from deepnet_fairseq.errors import UserError

from .support.archives import FILES, NOISE, a_room, content, make, make_tar, make_zip, refused, tar_info, zip_info  # noqa: F401


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


@pytest.mark.parametrize(
    ("later", "kind"),
    [("l", kind) for kind in (tarfile.REGTYPE, tarfile.DIRTYPE)]
    + [(name, kind) for name in ("l/x", "l/a/x") for kind in (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE)],
)
def test_nothing_is_written_through_a_link(later, kind, tmp_path, room):
    """Even one that stays inside: it would be another path than the archive says."""
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
