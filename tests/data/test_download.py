"""Tests of downloads from a local server that fails on demand: files are whole and verified, or absent.

A download is received as NAME.part, and gets the name NAME when it is whole and verified. A later call resumes a part.
`server.ranges(path)` are the Range headers of the requests for a path: None asks for the whole file, "bytes=1000-" for
what follows the first 1,000 bytes.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
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
WRONG = BODY[:-1] + b"\0"  # as long as BODY, with another last byte
ZIPPED = gzip.compress(BODY)
WEB_PAGE = b"\n<!DOCTYPE HTML>"
BUSY = Fault(status=503)
ATTEMPTS = 6  # in a row without a further byte, until an address is given up


def hex_sum(body, algorithm="sha256"):
    """Return the checksum of a file's content in hexadecimal."""
    return hashlib.new(algorithm, body).hexdigest()


def sha256(body):
    """Return the checksum of a file's content as RemoteFile has it."""
    return f"sha256:{hex_sum(body)}"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Let downloads wait for milliseconds where they wait for seconds, and reach the local server without a proxy."""
    monkeypatch.setattr(download, "WAIT", 0.01)
    monkeypatch.setattr(download, "TIMEOUT", (2, 0.7))  # to connect, and for the next byte
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server():
    """Provide a server, a Loopback, that serves BODY as /a.gz; tests add files and faults."""
    with serve({"/a.gz": BODY}) as running:
        yield running


@pytest.fixture
def file(server):
    """Provide the RemoteFile a.gz of the server, with its size and checksum."""
    return RemoteFile("a.gz", (server.url("/a.gz"),), len(BODY), sha256(BODY), origin="the publisher")


def fetch(file, folder):
    """Download one file into a folder; return its path."""
    return fetch_all([file], folder)[file.name]


def visible_names(folder):
    """Return the names in a folder that do not start with a dot."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_download_is_whole_and_alone_in_its_folder(file, tmp_path):
    path = fetch(file, tmp_path / "new" / "folder")

    assert path == tmp_path / "new" / "folder" / "a.gz"
    assert path.read_bytes() == BODY
    assert visible_names(path.parent) == ["a.gz"]


def test_a_download_shows_a_bar(file, tmp_path, capsys):
    fetch(file, tmp_path)

    bar = capsys.readouterr().err
    assert "a.gz" in bar
    assert "1.02M/1.02M" in bar


def test_a_download_asks_for_bytes_that_are_not_compressed(server, file, tmp_path):
    """Checksums are of the bytes of the file, not of a compressed transfer."""
    fetch(file, tmp_path)

    ((_, headers),) = server.asked
    assert headers["Accept-Encoding"] == "identity"


def test_a_file_that_is_there_is_not_fetched_again(server, file, tmp_path):
    """The folder of such a file may be read-only."""
    path = fetch(file, tmp_path / "shared")
    path.parent.chmod(0o500)
    assert len(server.asked) == 1

    assert fetch(file, path.parent) == path
    assert len(server.asked) == 1


def test_another_file_under_the_name_is_refused_and_left_alone(server, file, tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(WRONG)

    with refused(path) as caught:
        fetch(file, tmp_path)

    assert "sha256" in caught.value.way_out
    assert "the publisher" in caught.value.way_out  # who has given the checksum
    assert path.read_bytes() == WRONG
    assert server.asked == []


def test_a_folder_under_the_name_is_refused(file, tmp_path):
    (tmp_path / "a.gz").mkdir()

    with refused(tmp_path / "a.gz"):
        fetch(file, tmp_path)


@pytest.mark.parametrize("then", ("close", "reset", "stall"))
def test_a_broken_transfer_resumes_at_its_last_byte(then, server, file, tmp_path):
    """A transfer may break off more often than an address is tried in vain, because each attempt adds bytes.

    The 1,024,000 bytes come in two parts of 300,000, eight parts of 30,000, and the rest.
    """
    server.faults["/a.gz"] = [Fault(after=300_000, ending=then)] * 2 + [Fault(after=30_000)] * (ATTEMPTS + 2)

    path = fetch(file, tmp_path)

    assert path.read_bytes() == BODY
    assert server.ranges("/a.gz")[:4] == [None, "bytes=300000-", "bytes=600000-", "bytes=630000-"]
    assert server.sent["/a.gz"] <= len(BODY)  # no byte was sent twice
    assert visible_names(tmp_path) == ["a.gz"]


def test_a_server_that_breaks_off_at_the_same_byte_is_given_up(server, file, tmp_path):
    """The server sends the file from its beginning each time, so that no attempt but the first adds a byte."""
    server.ignores.add("Range")
    server.faults["/a.gz"] = repeat(Fault(after=300_000))

    with refused("a.gz") as caught:
        fetch(file, tmp_path)

    assert "300000" in caught.value.way_out
    assert len(server.asked) == 1 + ATTEMPTS
    assert visible_names(tmp_path) == ["a.gz.part"]


def test_a_whole_file_in_answer_to_a_range_replaces_the_part(server, file, tmp_path):
    """The whole file is not appended to the bytes that are there already."""
    server.ignores.add("Range")
    (tmp_path / "a.gz.part").write_bytes(BODY[:300_000])

    path = fetch(file, tmp_path)

    assert path.read_bytes() == BODY
    assert server.ranges("/a.gz") == ["bytes=300000-"]


def test_a_busy_server_is_asked_again(server, file, tmp_path):
    busy = (408, 429, 500, 502, 504)  # HTTP's statuses of servers that may answer a later request
    server.faults["/a.gz"] = [Fault(status=status) for status in busy]

    path = fetch(file, tmp_path)

    assert path.read_bytes() == BODY
    assert len(server.asked) == len(busy) + 1


def test_a_server_that_stays_busy_is_given_up(server, file, tmp_path):
    server.faults["/a.gz"] = [BUSY] * ATTEMPTS

    with refused("a.gz") as caught:
        fetch(file, tmp_path)

    assert "503" in caught.value.way_out
    assert len(server.asked) == ATTEMPTS
    assert visible_names(tmp_path) == []


NOBODY_LISTENS = "http://127.0.0.1:1/a.gz"
NO_URL = "http://[x"  # the bracket of an IPv6 address is not closed


@pytest.fixture
def addresses_in_vain(server):
    """Provide address -> a word of the reason why it gives no file."""
    server.faults["/gone"] = repeat(Fault(status=410))
    server.faults["/moved"] = [Fault(302, {"Location": f"{NO_URL}/"})]
    server.files |= {"/page": WEB_PAGE, "/torn": ZIPPED[:-9]}
    return {
        server.url("/gone"): "410",
        server.url("/none"): "404",
        NOBODY_LISTENS: f"[Errno {errno.ECONNREFUSED}]",
        server.url("/page"): "page",
        server.url("/torn"): "archive",
        NO_URL: "address",
        server.url("/moved"): "address",
    }


def test_a_file_that_no_address_gives_is_refused_with_all_reasons(addresses_in_vain, tmp_path):
    with refused("a.gz") as caught:
        fetch(RemoteFile("a.gz", tuple(addresses_in_vain)), tmp_path)

    for url, reason in addresses_in_vain.items():
        _, _, after_address = caught.value.way_out.partition(f"{url}: ")
        assert reason in after_address.split("; ")[0], url
    assert str(tmp_path) in caught.value.way_out  # where to put the file by hand
    assert visible_names(tmp_path) == []


def test_a_file_from_the_address_of_an_earlier_web_page_is_taken(server, tmp_path):
    """The checksum of the web page is not recorded as the file's."""
    file = RemoteFile("a.gz", (server.url("/page"),))
    server.files["/page"] = WEB_PAGE
    with refused("a.gz"):
        fetch(file, tmp_path)

    server.files["/page"] = ZIPPED
    path = fetch(file, tmp_path)

    assert path.read_bytes() == ZIPPED


def test_addresses_are_tried_until_one_gives_the_right_content(server, tmp_path):
    server.files |= {"/wrong": WRONG, "/right": BODY}
    addresses = tuple(server.url(path) for path in ("/none", "/wrong", "/right"))
    file = RemoteFile("a.gz", addresses, checksum=sha256(BODY))

    path = fetch(file, tmp_path)

    assert path.read_bytes() == BODY
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
        fetch(RemoteFile("a.gz", file.urls, size=12_345), tmp_path)

    assert "1,024,000" in caught.value.way_out
    assert "12,345" in caught.value.way_out
    assert visible_names(tmp_path) == []


def test_a_file_with_the_right_md5_checksum_is_taken(file, tmp_path):
    with_md5 = RemoteFile("a.gz", file.urls, checksum=f"md5:{hex_sum(BODY, 'md5')}")

    path = fetch(with_md5, tmp_path)

    assert path.read_bytes() == BODY


def test_a_file_with_a_wrong_md5_checksum_is_refused(file, tmp_path):
    with_md5 = RemoteFile("a.gz", file.urls, checksum=f"md5:{hex_sum(WRONG, 'md5')}")

    with refused("a.gz") as caught:
        fetch(with_md5, tmp_path)

    assert hex_sum(BODY, "md5") in caught.value.way_out
    assert hex_sum(WRONG, "md5") in caught.value.way_out


def test_a_part_of_another_file_is_fetched_anew(server, file, tmp_path):
    """The part is completed with the rest of a.gz. The checksum is then wrong, and the whole file is asked for."""
    (tmp_path / "a.gz.part").write_bytes(b"x" * 1000)

    path = fetch(file, tmp_path)

    assert path.read_bytes() == BODY
    assert server.ranges("/a.gz") == ["bytes=1000-", None]


def test_an_answer_of_another_range_is_not_appended(server, file, tmp_path):
    """Bytes from 1,000 on are asked for, and the answer says that it has those from 5 on."""
    (tmp_path / "a.gz.part").write_bytes(BODY[:1000])
    server.faults["/a.gz"] = [Fault(206, {"Content-Range": f"bytes 5-{len(BODY) - 1}/{len(BODY)}"})]

    path = fetch(file, tmp_path)

    assert path.read_bytes() == BODY
    assert server.ranges("/a.gz") == ["bytes=1000-", None]


CHANGED = WRONG[::-1]  # the second version of a file, with other bytes from the second on


@pytest.fixture
def changed_file(server, tmp_path):
    """Provide a file without a known checksum, of which tmp_path has 300,000 bytes; the server has another version now.

    The ETag of the first version is "1", that of the second "2".
    """
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
def test_versions_of_a_file_are_not_mixed(heeds_if_range, server, changed_file, tmp_path):
    """The request for the rest has the ETag of the first version as If-Range.

    A server that heeds If-Range answers with the whole second version. A server that ignores it sends the rest of the
    second version, with the ETag of that version, by which the difference is noticed.
    """
    if not heeds_if_range:
        server.ignores.add("If-Range")
    earlier_requests = len(server.asked)

    path = fetch(changed_file, tmp_path)

    assert path.read_bytes() == CHANGED
    expected = ["bytes=300000-"] if heeds_if_range else ["bytes=300000-", None]
    assert server.ranges("/a.gz")[earlier_requests:] == expected
    _, headers = server.asked[earlier_requests]
    assert headers["If-Range"] == '"1"'


def test_versions_of_a_file_are_not_mixed_after_a_full_disk(changed_file, tmp_path, monkeypatch):
    """The disk has no room when the second version comes; a later call fetches it from the beginning."""
    with monkeypatch.context() as full_disk:
        set_free_space(full_disk, 1000)
        with refused("a"):
            fetch(changed_file, tmp_path)

    path = fetch(changed_file, tmp_path)

    assert path.read_bytes() == CHANGED


size_known_or_not = pytest.mark.parametrize("size", (None, len(BODY)))


@size_known_or_not
def test_a_part_that_has_all_bytes_is_verified_without_a_transfer(size, server, file, tmp_path):
    """If the size is known, nothing is asked for.

    Otherwise the server answers a request for further bytes with status 416, and with no bytes.
    """
    (tmp_path / "a.gz.part").write_bytes(BODY)

    path = fetch(RemoteFile("a.gz", file.urls, size, sha256(BODY)), tmp_path)

    assert path.read_bytes() == BODY
    assert server.sent["/a.gz"] == 0


@size_known_or_not
def test_a_part_that_has_too_many_bytes_is_fetched_anew(size, server, file, tmp_path):
    (tmp_path / "a.gz.part").write_bytes(BODY + b"more")

    path = fetch(RemoteFile("a.gz", file.urls, size, sha256(BODY)), tmp_path)

    assert path.read_bytes() == BODY
    assert server.sent["/a.gz"] == len(BODY)


@pytest.fixture
def files_without_checksums(server):
    """Provide two files of unknown checksums, z and b."""
    server.files |= {"/z": b"zz", "/b": b"bb"}
    return [RemoteFile(name, (server.url(f"/{name}"),)) for name in ("z", "b")]


def test_checksums_of_first_downloads_are_recorded_for_sha256sum(files_without_checksums, tmp_path):
    fetch_all(files_without_checksums, tmp_path)

    assert list(recorded_sums(tmp_path)) == ["b", "z"]
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True)
    assert checked.returncode == 0


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


def test_space_for_all_files_is_checked_before_any_transfer(server, file, tmp_path, monkeypatch):
    """The two files have 1,024,000 bytes each. 24,000 are there, and the disk lacks one byte for the rest."""
    second = RemoteFile("b", file.urls, len(BODY), sha256(BODY))
    (tmp_path / "a.gz.part").write_bytes(BODY[:24_000])
    set_free_space(monkeypatch, 2 * len(BODY) - 24_000 - 1)

    with refused("download") as caught:
        fetch_all([file, second], tmp_path)

    assert "2.02MB" in caught.value.way_out
    assert server.asked == []
    assert visible_names(tmp_path) == ["a.gz.part"]


def test_space_for_a_file_of_unknown_size_is_checked_at_its_answer(server, file, tmp_path, monkeypatch):
    """The server's answer says how long the file is."""
    set_free_space(monkeypatch, len(BODY) - 1)

    with refused("c") as caught:
        fetch(RemoteFile("c", file.urls), tmp_path)

    assert len(server.asked) == 1
    assert "1.02MB" in caught.value.way_out


def test_a_new_folder_has_the_space_of_the_disk_that_it_will_be_on(tmp_path, monkeypatch):
    set_free_space(monkeypatch, 1000)

    assert need_space(tmp_path / "not" / "yet", 1000, "download") == 1000


def test_a_byte_more_than_the_disk_has_free_is_refused(tmp_path, monkeypatch):
    set_free_space(monkeypatch, 1000)

    with refused("download"):
        need_space(tmp_path / "not" / "yet", 1001, "download")


def test_a_download_that_filled_the_disk_resumes_when_there_is_room(server, file, tmp_path):
    part = tmp_path / "a.gz.part"
    with files_limited_to(300_001), refused(part):
        fetch(file, tmp_path)
    received = part.stat().st_size
    assert 0 < received <= 300_001

    path = fetch(file, tmp_path)

    assert path.read_bytes() == BODY
    assert server.ranges("/a.gz") == [None, f"bytes={received}-"]
