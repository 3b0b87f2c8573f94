"""A training on two hosts, one of which is cut off from the network: a namespace each, and a cable (veth) to pull."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .faults import states
from .faults.campaign import LAST, Training, make_data
from .faults.life import Log
from .support.helpers import run

TIMEOUT = 5  # seconds, --heartbeat-timeout
PROGRAMS = Path(sys.executable).parent
SILENT = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
SLEEP = ("sleep", "infinity")


class Host:
    """A process that sleeps in its namespace; the files are everybody's."""

    def __init__(self, number: int, *words) -> None:
        """words: of the command that makes the namespace."""
        self.number, self.address, self.interface = number, f"10.77.0.{number + 1}", f"cable{number}"
        self.sleeper = subprocess.Popen([*words, *SLEEP], **SILENT)
        name = Path(f"/proc/{self.sleeper.pid}/comm")
        while self.sleeper.poll() is None and name.read_text().strip() != "sleep":
            time.sleep(0.01)

    def command(self, *words) -> list[str]:
        """The words of a command, to be run on this host."""
        place = ("--target", self.sleeper.pid, "--user", "--preserve-credentials", "--net")
        return ["nsenter", *map(str, place), *map(str, words)]

    def ip(self, *words) -> None:
        subprocess.run(self.command("ip", *words), check=True, **SILENT)

    def train(self, flags: list[str], log: Path) -> subprocess.Popen:
        """torchrun with its rendezvous at the first host, one process a host; what it prints goes to the file `log`."""
        place = ("--nnodes", "2", "--node_rank", self.number, "--master_addr", "10.77.0.1", "--master_port", 29400)
        words = (PROGRAMS / "torchrun", *place, "--nproc_per_node", "1", "--no-python", PROGRAMS / "fairseq-train")
        environment = os.environ | {"GLOO_SOCKET_IFNAME": self.interface, "OMP_NUM_THREADS": "1"}
        with open(log, "ab") as file:
            return subprocess.Popen(self.command(*words, *flags), env=environment, stdout=file, stderr=file)


@pytest.fixture
def hosts():
    """Both, joined; skips where this user or system has no network namespaces."""
    made: list[Host] = []
    try:
        made.append(Host(0, "unshare", "--user", "--map-root-user", "--net"))
        made.append(Host(1, *made[0].command("unshare", "--net")))
        peer = ("peer", "name", made[1].interface, "netns", made[1].sleeper.pid)
        made[0].ip("link", "add", made[0].interface, "type", "veth", *peer)
        for host in made:
            host.ip("address", "add", f"{host.address}/24", "dev", host.interface)
            host.ip("link", "set", "lo", "up")
            host.ip("link", "set", host.interface, "up")
    except (OSError, subprocess.CalledProcessError):
        [host.sleeper.kill() for host in made]
        pytest.skip("no network namespaces for this user")
    yield made
    for host in made:
        host.sleeper.kill()
        host.sleeper.wait()


def stops(processes, within: float) -> list[int]:
    """The launchers' exit statuses."""
    deadline = time.monotonic() + within
    try:
        return [process.wait(max(0, deadline - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("nsenter") or not shutil.which("ip"), reason="no tools for network namespaces")
def test_cut_off_stops_in_time_and_resumes(hosts, tmp_path):
    """Both hosts stop with one line; joined again and started again, they end as a training that was not disturbed."""
    training = Training("cut", make_data(tmp_path), 2, 40, ("--optimizer", "adam", "--heartbeat-timeout", str(TIMEOUT)))
    folder, alone = tmp_path / "cut", tmp_path / "undisturbed"

    def start(name: str):
        logs = [Log(tmp_path / f"{name}{host.number}.log") for host in hosts]
        return [host.train(training.flags(folder), log.path) for host, log in zip(hosts, logs, strict=True)], logs

    processes, logs = start("first")
    deadline = time.monotonic() + 60
    while "epoch 1 @ 6 updates, score" not in logs[0].read():
        assert time.monotonic() < deadline and all(process.poll() is None for process in processes), logs[0].text
        time.sleep(0.005)
    hosts[1].ip("link", "set", hosts[1].interface, "down")
    assert stops(processes, within=TIMEOUT + 20) == [1, 1]
    for rank, log in enumerate(logs):
        before, line, after = log.read().partition("fairseq-train: error: ")
        assert after.startswith(f"process {rank} of 2: another one is gone or cannot be reached"), log.text
        assert str(folder) in after.splitlines()[0]
        assert "Traceback" not in before  # after it torchrun's own
    assert 6 <= states.check(folder, logs[0].saved()) < training.updates

    hosts[1].ip("link", "set", hosts[1].interface, "up")
    processes, logs = start("second")
    assert stops(processes, within=60) == [0, 0], logs[0].path.read_text()
    assert "Loaded checkpoint" in logs[0].read() and "@ 3 updates" not in logs[0].text
    run("torchrun", "--nproc_per_node", "2", "--no-python", "fairseq-train", *training.flags(alone))
    assert list(states.differences(states.load(folder / LAST), states.load(alone / LAST))) == []
