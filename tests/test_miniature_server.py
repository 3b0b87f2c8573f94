"""The server of miniatures: ranges, the same bytes each time, and an end with whoever started it."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from deepnet_fairseq.data.miniature import serve
from deepnet_fairseq.errors import UserError

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def url(tmp_path):
    (tmp_path / "host" / "a b").mkdir(parents=True)
    (tmp_path / "host" / "a b" / "file.tgz").write_bytes(CONTENT)
    with serve(tmp_path) as url:
        yield f"{url}/host/a%20b/file.tgz"


def test_server_gives_files_and_nothing_else(url):
    answer = requests.get(url)
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["Content-Length"] == str(len(CONTENT))
    head = requests.head(url)
    assert (head.status_code, head.content, head.headers["ETag"]) == (200, b"", answer.headers["ETag"])
    for other in ("missing", "", "../../../../../../etc/passwd", "%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd"):
        assert requests.get(f"{url.rpartition('/')[0]}/{other}").status_code == 404


def test_server_resumes(url):
    size = len(CONTENT)
    for asked, part in (("5-", CONTENT[5:]), ("0-0", CONTENT[:1]), ("-7", CONTENT[-7:]), ("9-99999", CONTENT[9:])):
        answer = requests.get(url, headers={"Range": f"bytes={asked}"})
        first = size - len(part) if asked != "0-0" else 0
        assert (answer.status_code, answer.content) == (206, part)
        assert answer.headers["Content-Range"] == f"bytes {first}-{first + len(part) - 1}/{size}"
    beyond = requests.get(url, headers={"Range": f"bytes={size}-"})
    assert (beyond.status_code, beyond.headers["Content-Range"]) == (416, f"bytes */{size}")
    tag = requests.head(url).headers["ETag"]
    assert requests.get(url, headers={"Range": "bytes=5-", "If-Range": tag}).content == CONTENT[5:]
    changed = requests.get(url, headers={"Range": "bytes=5-", "If-Range": '"another"'})
    assert (changed.status_code, changed.content) == (200, CONTENT)
    assert requests.get(url, headers={"Range": "lines=5-"}).status_code == 200


def test_server_ends_with_its_block(tmp_path):
    with serve(tmp_path) as url, requests.Session() as session:
        assert session.get(url).status_code == 404  # and keeps the connection
    with pytest.raises(requests.ConnectionError):
        requests.get(url)


def test_port_that_cannot_be_had(tmp_path):
    with serve(tmp_path) as url:
        for port in (int(url.rpartition(":")[2]), 99_999):
            with pytest.raises(UserError, match=f"--port {port}: .*; leave it out"), serve(tmp_path, port):
                pass


COMMAND = [str(Path(sys.executable).parent / "deepnet"), "serve-miniature", "iwslt14_de_en"]


@pytest.fixture
def server(tmp_path):
    """Starts the command; whatever happens, it is gone afterwards. Gives the process and the URL it prints."""
    started = []

    def start(*flags, seed):
        process = subprocess.Popen(
            [*COMMAND, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "TMPDIR": str(tmp_path)},
        )  # fmt: skip
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_command_serves_the_same_bytes_each_time_and_leaves_nothing_behind(server, tmp_path):
    process, url = server("--until-stdin-closes", seed="1")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
    first = requests.get(f"{url}/SHA256SUMS").text
    assert len(list(tmp_path.iterdir())) == 1
    process.stdin.close()
    assert process.wait(10) == 0
    process, url = server(seed="2")
    process.stdin.close()  # does not matter without the flag
    assert requests.get(f"{url}/SHA256SUMS").text == first != ""
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert not list(tmp_path.iterdir())


SCRIPT = """
coproc {} --until-stdin-closes
read -r url <&"${{COPROC[0]}}"
echo "$url"
sleep 100
echo done
"""


def test_no_server_survives_a_killed_script(tmp_path):
    (tmp_path / "script.sh").write_text(SCRIPT.format(shlex.join(COMMAND)))
    command = ["bash", str(tmp_path / "script.sh")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as script:
        try:
            url = script.stdout.readline().strip()
            assert requests.get(f"{url}/SHA256SUMS").status_code == 200
            time.sleep(0.5)
            assert requests.get(f"{url}/SHA256SUMS").status_code == 200
            script.kill()  # bash alone: its sleep goes on, as a training would
            script.wait()
            for _ in range(100):
                with suppress(requests.ReadTimeout):
                    requests.get(f"{url}/SHA256SUMS", timeout=5)
                time.sleep(0.1)
            pytest.fail("the server is still there")
        except requests.ConnectionError:
            assert script.poll() is not None
        finally:
            os.killpg(script.pid, signal.SIGKILL)
