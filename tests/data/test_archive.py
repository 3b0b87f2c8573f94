"""Tests of archives: they unpack whole into their folder or not at all, and members are read line by line.

Archives are .tar.gz and .zip files, and their members are the files in them. A .tar.gz is unpacked. Texts in archives
of both kinds are also read without unpacking.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
import zipfile

import numpy as np
import pytest

from deepnet_fairseq.data.archive import stream_lines, unpack
from deepnet_fairseq.errors import UserError

from ..support.disks import set_free_space
from ..support.errors import refused
from ..support.prepared import files_in

# bytes that do not compress, and that are no UTF-8 text
NOISE = np.random.default_rng(0).integers(0, 256, 5_000, dtype=np.uint8).tobytes()
# name -> content of the files in most archives here: text, an empty file, noise, and exactly one block of tar
FILES = {"a/train.de": b"ein Satz\nnoch einer\n" * 40, "a/b/c": b"", "noise": NOISE, "block": b"x" * 512}


def write_zip(path, members):
    """Write a .zip; members: (name, bytes) of each file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, body in members:
            file.writestr(name, body)


def write_tar(path, members):
    """Write a .tar.gz; members: (name or TarInfo, bytes) of each file."""
    with tarfile.open(path, "w:gz") as tar:
        for member, body in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))


def write_archive(path, *members):
    """Write a .zip or a .tar.gz, by the ending of `path`; return `path`. members: as in write_zip and write_tar."""
    write = write_zip if path.suffix == ".zip" else write_tar
    write(path, members)
    return path


def tar_member(name, kind=tarfile.REGTYPE, target="", mode=0o644):
    """Return the TarInfo of a member; kind: its type in tarfile; target: of a link; mode: permissions."""
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = target
    member.mode = mode
    return member


def everything(name):
    """Want every member, whatever its name."""
    return True


@pytest.fixture
def room(tmp_path):
    """Provide an empty folder to unpack into. Its parent, tmp_path, shows whether a file was written outside of it."""
    (tmp_path / "room").mkdir()
    return tmp_path / "room"


def refusal_that_writes_nothing(path, room):
    """Check that unpacking an archive into a folder in `room` is refused and writes no file; return the way out."""
    before = files_in(room.parent)
    with refused(path) as caught:
        unpack(path, room / "dest", everything)
    assert caught.value.subject == str(path)
    assert list(room.iterdir()) == []
    assert files_in(room.parent) == before
    return caught.value.way_out


def test_the_files_of_an_archive_are_unpacked_into_a_new_folder(tmp_path, room):
    """An empty folder in the archive is not made."""
    path = write_archive(tmp_path / "x.tgz", *FILES.items(), (tar_member("d", tarfile.DIRTYPE), b""))

    unpack(path, room / "new" / "dest", everything)

    assert files_in(room / "new" / "dest") == FILES
    assert not (room / "new" / "dest" / "d").exists()


def test_a_dot_in_front_of_names_is_dropped(tmp_path, room):
    path = write_archive(tmp_path / "x.tgz", ("./do", b"text"))

    unpack(path, room / "dest", everything)

    assert files_in(room / "dest") == {"do": b"text"}


def test_permissions_to_execute_are_dropped(tmp_path, room):
    path = write_archive(tmp_path / "x.tgz", (tar_member("do", mode=0o6775), b"#!"))

    unpack(path, room / "dest", everything)

    mode = stat.S_IMODE((room / "dest" / "do").stat().st_mode)
    assert mode & 0o7111 == 0  # neither executable, nor setuid, setgid or sticky


def test_only_what_is_wanted_is_unpacked(tmp_path, room):
    """A link is refused only among the members that are wanted."""
    link = (tar_member("l", tarfile.SYMTYPE, "/etc"), b"")
    path = write_archive(tmp_path / "x.tgz", *FILES.items(), link, ("/etc/passwd", b"root"))

    unpack(path, room / "dest", lambda name: name.endswith(".de"))

    assert files_in(room / "dest") == {"a/train.de": FILES["a/train.de"]}
    assert [path.name for path in room.iterdir()] == ["dest"]


def test_an_archive_with_nothing_wanted_is_refused(tmp_path, room):
    path = write_archive(tmp_path / "x.tgz", *FILES.items())

    with refused(path):
        unpack(path, room / "dest", lambda name: name == "other")

    assert list(room.iterdir()) == []


def test_an_archive_that_is_not_there_is_refused(tmp_path, room):
    refusal_that_writes_nothing(tmp_path / "gone.tgz", room)


def test_a_web_page_in_place_of_a_tar_is_refused(tmp_path, room):
    path = tmp_path / "x.tgz"
    path.write_bytes(b"<!DOCTYPE html>")

    refusal_that_writes_nothing(path, room)


def test_a_web_page_in_place_of_a_zip_is_refused(tmp_path):
    path = tmp_path / "x.zip"
    path.write_bytes(b"<!DOCTYPE html>")

    with refused(path):
        next(stream_lines(path, "a"))


def read_all(path):
    """Unpack a .tar.gz and return its files, or return the lines of the members of a .zip with the names of FILES."""
    if path.suffix == ".zip":
        return [list(stream_lines(path, name)) for name in FILES]
    dest = path.parent / "dest"
    shutil.rmtree(dest, ignore_errors=True)
    unpack(path, dest, everything)
    return files_in(dest)


@pytest.fixture(params=("x.tar.gz", "x.zip"))
def archive(request, tmp_path):
    """Provide the path of an archive of FILES, .tar.gz or .zip; the noise is in hexadecimal, so that it is text."""
    files = FILES | {"noise": NOISE.hex().encode()}
    return write_archive(tmp_path / request.param, *files.items())


def sixty_places(body):
    """Return some 60 places in a file, evenly from its first byte on."""
    return range(0, len(body), len(body) // 60)


def test_an_archive_that_is_cut_off_anywhere_is_refused(archive):
    body = archive.read_bytes()

    for end in sixty_places(body):
        archive.write_bytes(body[:end])

        with refused(archive):
            read_all(archive)


def test_a_wrong_byte_is_refused_or_changes_no_content(archive):
    """A wrong byte in a time stamp, for example, changes no content. Few bytes of an archive are of this kind."""
    body = archive.read_bytes()
    expected = read_all(archive)

    refusals = 0
    for place in sixty_places(body):
        all_bits_flipped = bytes([body[place] ^ 0xFF])
        archive.write_bytes(body[:place] + all_bits_flipped + body[place + 1 :])
        try:
            assert read_all(archive) == expected, place
        except UserError:
            refusals += 1

    assert refusals > 50


@pytest.mark.parametrize("kind", (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE))
def test_links_and_devices_are_refused(kind, tmp_path, room):
    """Corpora have no links. A file written through one, here "odd/through", could come to lie outside the folder."""
    odd = tar_member("odd", kind, "file")
    path = write_archive(tmp_path / "x.tgz", ("file", b"1"), (odd, b""), ("odd/through", b"2"))

    assert "'odd'" in refusal_that_writes_nothing(path, room)


@pytest.mark.parametrize("name", ("../evil", "a/../../evil", "x" * 300))
def test_names_that_lead_outside_or_are_too_long_are_refused(name, tmp_path, room):
    path = write_archive(tmp_path / "x.tgz", (tar_member(name), b"text"))

    # a refusal shows the first 60 characters of a name
    assert f"'{name[:60]}'" in refusal_that_writes_nothing(path, room)


def test_a_name_that_begins_at_the_root_stays_in_the_folder(tmp_path, room):
    path = write_archive(tmp_path / "x.tgz", (tar_member("/evil"), b"text"))

    unpack(path, room / "dest", everything)

    assert files_in(tmp_path).keys() == {"x.tgz", "room/dest/evil"}


def test_an_archive_that_the_disk_does_not_take_is_refused(tmp_path, room, monkeypatch):
    """An archive of less than 60 kB unpacks to 30 MB of zeros, and the disk has 20 MB free."""
    path = write_archive(tmp_path / "bomb.tgz", ("fine", b"fine"), ("zeros", b"\0" * 30_000_000))
    assert path.stat().st_size < 60_000
    set_free_space(monkeypatch, 20_000_000)

    way_out = refusal_that_writes_nothing(path, room)

    assert "30.0MB" in way_out
    assert "20.0MB" in way_out


LINES = ["ein Satz", "", "a\u2028b\x85c\x0bd\re", "größer", "last"]  # with characters that end lines elsewhere
TOO_LONG = b"short\n" + b"x" * 20_000_000  # lines may have 16 MiB, and the second has more


@pytest.fixture(scope="module", params=("x.tgz", "x.zip"))
def archive_of_text(request, tmp_path_factory):
    """Provide the path of an archive, .tgz or .zip, with LINES in d/text, NOISE in noise, and TOO_LONG in long."""
    members = {"a": b"x\n", "d/text": "\n".join(LINES).encode(), "noise": NOISE, "long": TOO_LONG}
    return write_archive(tmp_path_factory.mktemp("text") / request.param, *members.items())


def test_lines_of_a_member_end_at_line_feeds_only(archive_of_text):
    """Other line ends of Unicode occur within the sentences of parallel text."""
    assert list(stream_lines(archive_of_text, "d/text")) == LINES


def test_a_member_that_is_missing_is_named(archive_of_text):
    with refused(archive_of_text) as caught:
        list(stream_lines(archive_of_text, "d/other"))

    assert "d/other" in caught.value.way_out


@pytest.mark.parametrize(("member", "line"), [("noise", 1), ("long", 2)])
def test_a_line_that_is_no_text_or_too_long_is_named(member, line, archive_of_text):
    with refused(f"{member}, line {line}"):
        list(stream_lines(archive_of_text, member))


def test_lines_before_the_place_where_an_archive_is_cut_off_are_read(tmp_path):
    """The refusal comes when the reader gets to the place where the archive is cut off."""
    path = write_archive(tmp_path / "x.tgz", ("t", b"a line of text, some\n" * 500_000))
    os.truncate(path, path.stat().st_size - 2000)  # of some 26 kB

    lines = stream_lines(path, "t")

    assert next(lines) == "a line of text, some"
    with refused(path):
        list(lines)
