"""Tests of downloads from a local server that fails on demand: files are whole and verified, or absent."""

from __future__ import annotations

import errno
import gzip
import hashlib
import re
import subprocess
from itertools import repeat

import pytest

from deepnet_fairseq.data import download
from deepnet_fairseq.data.download import RemoteFile, fetch_all, recorded_sums
from deepnet_fairseq.data.folder import need_space

from ..support.disks import files_limited_to, set_free_space
from ..support.errors import refused
from ..support.loopback import Fault, serve

BODY = bytes(range(256)) * 4000  # 1,024,000 bytes
WRONG = BODY[:-1] + b"\0"
ZIPPED = gzip.compress(BODY)
BUSY = Fault(status=503)
ATTEMPTS = 6  # in a row without a further byte, until an address is given up


def hex_sum(body, algorithm="sha256"):
    return hashlib.new(algorithm, body).hexdigest()


def sha256(body):
    return f"sha256:{hex_sum(body)}"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(download, "WAIT", 0.01)
    monkeypatch.setattr(download, "TIMEOUT", (2, 0.7))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server():
    """Provide a server that serves BODY as /a.gz."""
    with serve({"/a.gz": BODY}) as running:
        yield running


@pytest.fixture
def file(server):
    """Provide the file a.gz with its size and checksum."""
    return RemoteFile("a.gz", (server.url("/a.gz"),), len(BODY), sha256(BODY), "the publisher")


def fetch(file, folder):
    return fetch_all([file], folder)[file.name]


def visible_names(folder):
    """Return the names in a folder that do not start with a dot."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_download_is_whole_and_alone_in_its_folder(server, file, tmp_path):
    path = fetch(file, tmp_path / "new" / "folder")

    assert path == tmp_path / "new" / "folder" / "a.gz"
    assert path.read_bytes() == BODY
    assert visible_names(path.parent) == ["a.gz"]


def test_a_download_shows_a_bar(file, tmp_path, capsys):
    fetch(file, tmp_path)

    assert re.search(r"a\.gz: 100%.* 1\.02M/1\.02M", capsys.readouterr().err)


def test_a_download_asks_for_bytes_as_they_are(server, file, tmp_path):
    fetch(file, tmp_path)

    assert [headers["Accept-Encoding"] for _, headers in server.asked] == ["identity"]


def test_a_file_that_is_there_is_not_fetched_again(server, file, tmp_path):
    """The folder need not be writable then."""
    path = fetch(file, tmp_path / "shared")
    path.parent.chmod(0o500)

    assert fetch(file, path.parent) == path
    assert len(server.asked) == 1


def test_another_file_under_the_name_is_refused_and_left_alone(server, file, tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(WRONG)

    with refused(path) as caught:
        fetch(file, tmp_path)

    assert "sha256" in caught.value.way_out
    assert "the publisher" in caught.value.way_out  # of whom the checksum is
    assert path.read_bytes() == WRONG
    assert server.asked == []


def test_a_folder_under_the_name_is_refused(file, tmp_path):
    (tmp_path / "a.gz").mkdir()

    with refused(tmp_path / "a.gz"):
        fetch(file, tmp_path)


@pytest.mark.parametrize("then", ("close", "reset", "stall"))
def test_a_broken_transfer_resumes_at_its_last_byte(then, server, file, tmp_path):
    """It does so more often than an address is tried in vain, as long as each transfer adds bytes."""
    server.faults["/a.gz"] = [Fault(after=300_000, then=then)] * 2 + [Fault(after=30_000)] * (ATTEMPTS + 2)

    assert fetch(file, tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz")[:4] == [None, "bytes=300000-", "bytes=600000-", "bytes=630000-"]
    assert server.sent["/a.gz"] <= len(BODY)
    assert visible_names(tmp_path) == ["a.gz"]


def test_a_server_that_breaks_off_at_the_same_byte_is_given_up(server, file, tmp_path):
    server.ignores.add("Range")
    server.faults["/a.gz"] = repeat(Fault(after=300_000))

    with refused("a.gz") as caught:
        fetch(file, tmp_path)

    assert "300000" in caught.value.way_out
    assert len(server.asked) == 1 + ATTEMPTS
    assert visible_names(tmp_path) == ["a.gz.part"]


def test_an_answer_without_the_range_asked_for_is_not_spliced(server, file, tmp_path):
    """The answer to a Range is 200, with the whole file."""
    server.ignores.add("Range")
    (tmp_path / "a.gz.part").write_bytes(BODY[:300_000])

    assert fetch(file, tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz") == ["bytes=300000-"]


def test_a_busy_server_is_asked_again(server, file, tmp_path):
    server.faults["/a.gz"] = [Fault(status=status) for status in (408, 429, 500, 502, 504)]

    assert fetch(file, tmp_path).read_bytes() == BODY
    assert len(server.asked) == 6


def test_a_server_that_stays_busy_is_given_up(server, file, tmp_path):
    server.faults["/a.gz"] = [BUSY] * ATTEMPTS

    with refused("a.gz") as caught:
        fetch(file, tmp_path)

    assert "503" in caught.value.way_out
    assert len(server.asked) == ATTEMPTS
    assert visible_names(tmp_path) == []


def test_a_file_that_no_address_gives_names_the_reason_of_each(server, tmp_path):
    server.faults["/a.gz"] = repeat(Fault(status=410))
    server.faults["/away"] = [Fault(302, {"Location": "http://[x/"})]
    server.files |= {"/page": b"\n<!DOCTYPE HTML>", "/torn": ZIPPED[:-9]}
    reasons = {
        server.url("/a.gz"): "410 Gone",
        server.url("/none"): "404 Not Found",
        "http://127.0.0.1:1/a.gz": f"[Errno {errno.ECONNREFUSED}] ",
        server.url("/page"): "a web page",
        server.url("/torn"): "no archive",
        "http://[x": "no address",
        server.url("/away"): "no address",
    }

    with refused("a.gz") as caught:
        fetch(RemoteFile("a.gz", tuple(reasons)), tmp_path)

    for url, reason in reasons.items():
        assert f"{url}: {reason}" in caught.value.way_out
    assert str(tmp_path) in caught.value.way_out  # where to put the file by hand
    assert visible_names(tmp_path) == []


def test_a_file_from_the_address_of_an_earlier_web_page_is_taken(server, tmp_path):
    """The checksum of the web page was not recorded as the file's."""
    file = RemoteFile("a.gz", (server.url("/page"),))
    server.files["/page"] = b"\n<!DOCTYPE HTML>"
    with refused("a.gz"):
        fetch(file, tmp_path)

    server.files["/page"] = ZIPPED
    assert fetch(file, tmp_path).read_bytes() == ZIPPED


def test_addresses_are_tried_until_one_gives_the_right_content(server, tmp_path):
    server.files |= {"/wrong": WRONG, "/right": BODY}
    addresses = tuple(server.url(path) for path in ("/none", "/wrong", "/right"))

    assert fetch(RemoteFile("a.gz", addresses, None, sha256(BODY)), tmp_path).read_bytes() == BODY
    assert server.ranges("/right") == [None]


def test_wrong_content_is_refused_with_both_checksums(server, file, tmp_path):
    server.files["/a.gz"] = WRONG

    with refused("a.gz") as caught:
        fetch(file, tmp_path)

    assert hex_sum(WRONG) in caught.value.way_out
    assert hex_sum(BODY) in caught.value.way_out
    assert "the publisher" in caught.value.way_out
    assert visible_names(tmp_path) == []


def test_a_wrong_size_is_refused_with_both_sizes(file, tmp_path):
    with refused("a.gz") as caught:
        fetch(RemoteFile("a.gz", file.urls, 0), tmp_path)

    assert re.search(r"1,024,000 bytes\D* 0\b", caught.value.way_out)
    assert visible_names(tmp_path) == []


def test_a_checksum_may_be_md5(server, file, tmp_path):
    server.files["/a.gz"] = WRONG

    with_md5 = RemoteFile("a.gz", file.urls, checksum=f"md5:{hex_sum(WRONG, 'md5')}")

    assert fetch(with_md5, tmp_path).read_bytes() == WRONG


def test_a_part_of_another_file_is_fetched_anew(server, file, tmp_path):
    (tmp_path / "a.gz.part").write_bytes(b"x" * 1000)

    assert fetch(file, tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz") == ["bytes=1000-", None]


def test_an_answer_with_another_range_is_not_spliced(server, file, tmp_path):
    (tmp_path / "a.gz.part").write_bytes(BODY[:1000])
    server.faults["/a.gz"] = [Fault(206, {"Content-Range": f"bytes 5-{len(BODY) - 1}/{len(BODY)}"})]

    assert fetch(file, tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz") == ["bytes=1000-", None]


CHANGED = WRONG[::-1]  # the second version of a file


@pytest.fixture
def changed_file(server, tmp_path):
    """Provide a file without a known checksum, of which tmp_path has a part; the server has another version by now."""
    file = RemoteFile("a", (server.url("/a.gz"),))
    server.headers["/a.gz"]["ETag"] = '"1"'
    server.faults["/a.gz"] = [Fault(after=300_000), *[BUSY] * ATTEMPTS]
    with refused("a"):
        fetch(file, tmp_path)
    assert (tmp_path / "a.part").stat().st_size == 300_000

    server.files["/a.gz"] = CHANGED
    server.headers["/a.gz"]["ETag"] = '"2"'
    return file


@pytest.mark.parametrize("heeds_if_range", (True, False))
def test_a_file_that_changed_on_the_server_is_not_spliced(heeds_if_range, server, changed_file, tmp_path):
    """If-Range sends the ETag, and a server that ignores it sends its new one."""
    if not heeds_if_range:
        server.ignores.add("If-Range")
    earlier_requests = len(server.asked)

    assert fetch(changed_file, tmp_path).read_bytes() == CHANGED

    expected = ["bytes=300000-"] if heeds_if_range else ["bytes=300000-", None]
    assert server.ranges("/a.gz")[earlier_requests:] == expected
    _, headers = server.asked[earlier_requests]
    assert headers["If-Range"] == '"1"'


def test_a_file_that_changed_while_the_disk_is_full_is_not_spliced(changed_file, tmp_path, monkeypatch):
    """The disk has no room when the second version begins: a later call fetches it anew."""
    with monkeypatch.context() as full:
        set_free_space(full, 1000)
        with refused("a"):
            fetch(changed_file, tmp_path)

    assert fetch(changed_file, tmp_path).read_bytes() == CHANGED


@pytest.mark.parametrize("size", (None, len(BODY)))
def test_a_part_that_is_whole_is_verified_without_a_transfer(size, server, file, tmp_path):
    """The server answers with 416: there is no further range."""
    (tmp_path / "a.gz.part").write_bytes(BODY)

    assert fetch(RemoteFile("a.gz", file.urls, size, sha256(BODY)), tmp_path).read_bytes() == BODY
    assert server.sent["/a.gz"] == 0


@pytest.mark.parametrize("size", (None, len(BODY)))
def test_a_part_that_is_too_long_is_fetched_anew(size, server, file, tmp_path):
    (tmp_path / "a.gz.part").write_bytes(BODY + b"more")

    assert fetch(RemoteFile("a.gz", file.urls, size, sha256(BODY)), tmp_path).read_bytes() == BODY
    assert server.sent["/a.gz"] == len(BODY)


@pytest.fixture
def files_without_checksums(server):
    """Provide two files of unknown checksums."""
    server.files |= {"/z": b"zz", "/b": b"bb"}
    return [RemoteFile(name, (server.url(f"/{name}"),)) for name in ("z", "b")]


def test_checksums_of_first_downloads_are_recorded_as_sha256sum_does(files_without_checksums, tmp_path):
    fetch_all(files_without_checksums, tmp_path)

    assert list(recorded_sums(tmp_path)) == ["b", "z"]
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


def test_a_later_download_must_have_the_recorded_checksum(server, files_without_checksums, tmp_path):
    fetch_all(files_without_checksums, tmp_path)
    (tmp_path / "b").unlink()
    server.files["/b"] = b"xx"

    with refused("b") as caught:
        fetch_all(files_without_checksums, tmp_path)

    assert hex_sum(b"bb") in caught.value.way_out
    assert "SHA256SUMS" in caught.value.way_out


def test_a_file_put_there_by_hand_must_have_the_recorded_checksum(files_without_checksums, tmp_path):
    fetch_all(files_without_checksums, tmp_path)
    (tmp_path / "b").write_bytes(b"by hand")

    with refused(tmp_path / "b"):
        fetch_all(files_without_checksums, tmp_path)


def test_a_damaged_record_of_checksums_is_refused(files_without_checksums, tmp_path):
    fetch_all(files_without_checksums, tmp_path)
    (tmp_path / "SHA256SUMS").write_text("not sums\n")

    with refused(tmp_path / "SHA256SUMS", "line 1"):
        fetch_all(files_without_checksums, tmp_path)


def test_the_room_for_all_files_is_looked_for_before_a_transfer(server, file, tmp_path, monkeypatch):
    """Two files of 1,024,000 bytes are wanted, of which 24,000 are there: one byte is missing for the rest."""
    second = RemoteFile("b", file.urls, len(BODY), sha256(BODY))
    (tmp_path / "a.gz.part").write_bytes(BODY[:24_000])
    set_free_space(monkeypatch, 2 * len(BODY) - 24_000 - 1)

    with refused("download") as caught:
        fetch_all([file, second], tmp_path)

    assert "2.02MB" in caught.value.way_out
    assert server.asked == []
    assert visible_names(tmp_path) == ["a.gz.part"]


def test_the_room_for_a_file_of_unknown_size_is_looked_for_at_its_answer(file, tmp_path, monkeypatch):
    set_free_space(monkeypatch, len(BODY) - 1)

    with refused("c") as caught:
        fetch(RemoteFile("c", file.urls), tmp_path)

    assert "1.02MB" in caught.value.way_out


def test_the_room_in_a_folder_that_is_yet_to_be_made_is_that_of_its_disk(tmp_path, monkeypatch):
    set_free_space(monkeypatch, 1000)

    assert need_space(tmp_path / "not" / "yet", 1000, "it") == 1000
    with refused("it"):
        need_space(tmp_path / "not" / "yet", 1001, "it")


def test_a_download_that_filled_the_disk_resumes_when_there_is_room(server, file, tmp_path):
    part = tmp_path / "a.gz.part"
    with files_limited_to(300_001), refused(part):
        fetch(file, tmp_path)
    received = part.stat().st_size
    assert 0 < received <= 300_001

    assert fetch(file, tmp_path).read_bytes() == BODY
    assert server.ranges("/a.gz") == [None, f"bytes={received}-"]
