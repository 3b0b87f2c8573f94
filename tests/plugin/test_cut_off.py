"""Test of a training on two hosts, network namespaces joined by a veth cable, one of which is cut off."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..faults import states
from ..faults.campaign import LAST, make_data, words_of
from ..faults.life import saved
from ..support.helpers import run

TIMEOUT = 5  # seconds, --heartbeat-timeout
PROGRAMS = Path(sys.executable).parent
SILENT = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)


class Host:
    """Host: a sleeping process in a network namespace of its own; the file system is shared."""

    def __init__(self, number: int, *words) -> None:
        """Start the host; words: the command that makes the namespace."""
        self.number, self.interface = number, f"cable{number}"
        self.sleeper = subprocess.Popen([*words, "sleep", "infinity"], **SILENT)
        name = Path(f"/proc/{self.sleeper.pid}/comm")
        while self.sleeper.poll() is None and name.read_text().strip() != "sleep":
            time.sleep(0.01)

    def command(self, *words) -> list[str]:
        """Return the words that run a command on this host."""
        place = ("--target", self.sleeper.pid, "--user", "--preserve-credentials", "--net")
        return ["nsenter", *map(str, place), *map(str, words)]

    def ip(self, *words) -> None:
        subprocess.run(self.command("ip", *words), check=True, **SILENT)

    def train(self, flags: list[str], log: Path) -> subprocess.Popen:
        """Start torchrun with one process a host and the rendezvous at the first; output goes to the file `log`."""
        place = ("--nnodes", "2", "--node_rank", self.number, "--master_addr", "10.77.0.1", "--master_port", 29400)
        words = (PROGRAMS / "torchrun", *place, "--nproc_per_node", "1", "--no-python", PROGRAMS / "fairseq-train")
        environment = os.environ | {"GLOO_SOCKET_IFNAME": self.interface, "OMP_NUM_THREADS": "1"}
        with open(log, "ab") as file:
            return subprocess.Popen(self.command(*words, *flags), env=environment, stdout=file, stderr=file)


@pytest.fixture
def hosts():
    """Provide two joined hosts; skip where the user or system has no network namespaces."""
    made: list[Host] = []
    try:
        made.append(Host(0, "unshare", "--user", "--map-root-user", "--net"))
        made.append(Host(1, *made[0].command("unshare", "--net")))
        made[0].ip("link", "add", "cable0", "type", "veth", "peer", "name", "cable1", "netns", made[1].sleeper.pid)
        for host in made:
            host.ip("address", "add", f"10.77.0.{host.number + 1}/24", "dev", host.interface)
            host.ip("link", "set", "lo", "up")
            host.ip("link", "set", host.interface, "up")
        yield made
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no network namespaces for this user")
    finally:
        for host in made:
            host.sleeper.kill()
            host.sleeper.wait()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("nsenter") or not shutil.which("ip"), reason="no tools for network namespaces")
def test_cut_off_stops_in_time_and_resumes(hosts, tmp_path):
    """Hosts that lose each other stop with one line; rejoined and restarted, they end as an undisturbed training."""
    data, folder, alone = make_data(tmp_path), tmp_path / "cut", tmp_path / "undisturbed"
    flags = ("--optimizer", "adam", "--heartbeat-timeout", TIMEOUT)
    words = [words_of(data, 40, save, flags) for save in (folder, alone)]
    logs = [tmp_path / f"{host.number}.log" for host in hosts]
    processes = [host.train(words[0], log) for host, log in zip(hosts, logs, strict=True)]
    deadline = time.monotonic() + 60
    while "epoch 1 @ 6 updates, score" not in logs[0].read_text():
        assert time.monotonic() < deadline and all(process.poll() is None for process in processes), logs[0].read_text()
        time.sleep(0.005)
    hosts[1].ip("link", "set", hosts[1].interface, "down")
    assert [process.wait(TIMEOUT + 20) for process in processes] == [1, 1]
    for rank, log in enumerate(logs):
        before, _, after = log.read_text().partition("fairseq-train: error: ")
        assert after.startswith(f"process {rank} of 2: another one is gone or cannot be reached"), before
        assert str(folder) in after.splitlines()[0]
        assert "Traceback" not in before  # a traceback after it is torchrun's own
    assert 6 <= states.check(folder, saved(logs[0].read_text())) < 40

    hosts[1].ip("link", "set", hosts[1].interface, "up")
    logs = [tmp_path / f"{host.number}-again.log" for host in hosts]
    processes = [host.train(words[0], log) for host, log in zip(hosts, logs, strict=True)]
    assert [process.wait(60) for process in processes] == [0, 0], logs[0].read_text()
    assert "Loaded checkpoint" in logs[0].read_text() and "@ 3 updates" not in logs[0].read_text()
    run("torchrun", "--nproc_per_node", "2", "--no-python", "fairseq-train", *words[1])
    assert list(states.differences(states.load(folder / LAST), states.load(alone / LAST))) == []
