"""Test of a training on two hosts that are cut off from each other: network namespaces joined by a veth cable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..faults import states
from ..faults.campaign import LAST, SIZES, words_of
from ..faults.life import saved
from ..support.corpora import make_data
from ..support.helpers import run

HEARTBEAT = 5  # seconds, --heartbeat-timeout: after so long without a sign of the others a process ends
MARGIN = 20  # seconds, for the end of a program on a busy machine
UPDATES = 40  # of the whole training
SAVE_INTERVAL = 3  # updates, of the campaign's flags
CUT_AFTER = 2 * SAVE_INTERVAL  # updates
PROGRAMS = Path(sys.executable).parent
SILENT = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)


class Host:
    """Host: a sleeping process in a network namespace of its own; the file system is shared."""

    def __init__(self, number: int, *words) -> None:
        """Start the host; words: the command that makes the namespace."""
        self.number = number
        self.interface = f"cable{number}"
        self.sleeper = subprocess.Popen([*words, "sleep", "infinity"], **SILENT)
        name = Path(f"/proc/{self.sleeper.pid}/comm")
        # wait until the command has made the namespace, and its process has become `sleep`
        while self.sleeper.poll() is None and name.read_text().strip() != "sleep":
            time.sleep(0.01)

    def command(self, *words) -> list[str]:
        """Return the words that run a command in this host's namespace."""
        place = ("--target", self.sleeper.pid, "--user", "--preserve-credentials", "--net")
        return ["nsenter", *map(str, place), *map(str, words)]

    def ip(self, *words) -> None:
        subprocess.run(self.command("ip", *words), check=True, **SILENT)

    def switch_cable(self, state: str) -> None:
        """Switch this host's end of the cable "up" or "down"."""
        self.ip("link", "set", self.interface, state)

    def train(self, flags: list[str], log: Path) -> subprocess.Popen:
        """Start torchrun with one process a host and the rendezvous at the first; output goes to the file `log`."""
        place = ("--nnodes", "2", "--node_rank", self.number, "--master_addr", "10.77.0.1", "--master_port", 29400)
        words = (PROGRAMS / "torchrun", *place, "--nproc_per_node", "1", "--no-python", PROGRAMS / "fairseq-train")
        environment = os.environ | {"GLOO_SOCKET_IFNAME": self.interface, "OMP_NUM_THREADS": "1"}
        with open(log, "ab") as file:
            return subprocess.Popen(self.command(*words, *flags), env=environment, stdout=file, stderr=file)


@pytest.fixture
def hosts():
    """Provide two hosts joined by a cable, 10.77.0.1 and 10.77.0.2; skip where there are no network namespaces."""
    made: list[Host] = []
    try:
        made.append(Host(0, "unshare", "--user", "--map-root-user", "--net"))
        made.append(Host(1, *made[0].command("unshare", "--net")))
        made[0].ip("link", "add", "cable0", "type", "veth", "peer", "name", "cable1", "netns", made[1].sleeper.pid)
        for host in made:
            host.ip("address", "add", f"10.77.0.{host.number + 1}/24", "dev", host.interface)
            host.ip("link", "set", "lo", "up")
            host.switch_cable("up")
        yield made
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no network namespaces for this user")
    finally:
        for host in made:
            host.sleeper.kill()
            host.sleeper.wait()


def train_on_both(hosts: list[Host], flags: list[str], logs: list[Path]) -> list[subprocess.Popen]:
    """Start a training on both hosts; each writes a log."""
    return [host.train(flags, log) for host, log in zip(hosts, logs, strict=True)]


def wait_for_words(processes: list[subprocess.Popen], log: Path, words: str) -> None:
    """Wait until the log contains `words`; no process may end before."""
    deadline = time.monotonic() + 60
    while words not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        for process in processes:
            assert process.poll() is None, log.read_text()
        time.sleep(0.005)


def assert_ended_in_a_line(log: Path, rank: int, folder: Path) -> None:
    """Check that the log's error is a line of this rank about the folder, with no traceback before it.

    A traceback after the line is torchrun's own.
    """
    before, _, after = log.read_text().partition("fairseq-train: error: ")
    line, _, _ = after.partition("\n")
    assert line.startswith(f"process {rank} of 2: "), before
    assert str(folder) in line
    assert "Traceback" not in before


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("nsenter") or not shutil.which("ip"), reason="no tools for network namespaces")
def test_hosts_cut_off_from_each_other_stop_in_time_and_resume(hosts, tmp_path):
    """Hosts that lose each other stop with one line; rejoined and restarted, they end as an undisturbed training."""
    data = make_data(tmp_path, SIZES)
    folder = tmp_path / "cut"
    flags_of_all = ("--optimizer", "adam", "--heartbeat-timeout", HEARTBEAT)
    flags = words_of(data, UPDATES, folder, flags_of_all)

    # the cable is cut once the second save has ended
    logs = [tmp_path / f"{host.number}.log" for host in hosts]
    processes = train_on_both(hosts, flags, logs)
    wait_for_words(processes, logs[0], f"epoch 1 @ {CUT_AFTER} updates, score")  # fairseq's line of a save
    hosts[1].switch_cable("down")

    for process in processes:
        assert process.wait(HEARTBEAT + MARGIN) == 1
    for rank, log in enumerate(logs):
        assert_ended_in_a_line(log, rank, folder)
    last_update = states.check(folder, at_least=saved(logs[0].read_text()))
    assert last_update >= CUT_AFTER
    assert last_update < UPDATES

    # the cable is joined and the training started again
    hosts[1].switch_cable("up")
    logs = [tmp_path / f"{host.number}-again.log" for host in hosts]
    processes = train_on_both(hosts, flags, logs)

    for process in processes:
        assert process.wait(60) == 0, logs[0].read_text()
    assert "Loaded checkpoint" in logs[0].read_text()
    assert f"@ {SAVE_INTERVAL} updates" not in logs[0].read_text()  # the first save of a training from the beginning

    # a training that nothing has disturbed
    undisturbed = tmp_path / "undisturbed"
    alone = words_of(data, UPDATES, undisturbed, flags_of_all)
    run("torchrun", "--nproc_per_node", "2", "--no-python", "fairseq-train", *alone)
    assert list(states.differences(states.load(folder / LAST), states.load(undisturbed / LAST))) == []
