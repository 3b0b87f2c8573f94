"""Two hosts on one machine: a network namespace each, and a cable (veth) between them that can be pulled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = Path(sys.executable).parent
PORT = 29400
SILENT = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)


class Host:
    """One of them: a process that sleeps in its namespace; the files are everybody's."""

    def __init__(self, number: int, sleeper: subprocess.Popen) -> None:
        self.number, self.address, self.interface = number, f"10.77.0.{number + 1}", f"cable{number}"
        self.pid = sleeper.pid

    def command(self, *words) -> list[str]:
        """The words of a command, to be run on this host."""
        return ["nsenter", "--target", str(self.pid), "--user", "--preserve-credentials", "--net", *map(str, words)]

    def ip(self, *words) -> None:
        subprocess.run(self.command("ip", *words), check=True, **SILENT)

    def train(self, flags: list[str], log: Path, first: Host) -> subprocess.Popen:
        """torchrun with its rendezvous at `first`, one process a host; what it prints goes to the file `log`."""
        place = ("--nnodes", "2", "--node_rank", self.number, "--master_addr", first.address, "--master_port", PORT)
        words = (PROGRAMS / "torchrun", *place, "--nproc_per_node", "1", "--no-python", PROGRAMS / "fairseq-train")
        environment = os.environ | {"GLOO_SOCKET_IFNAME": self.interface, "OMP_NUM_THREADS": "1"}
        with open(log, "ab") as file:
            return subprocess.Popen(
                self.command(*words, *flags), env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )


@contextmanager
def two_hosts():
    """Gives both, joined; None where this user or system has no network namespaces."""
    sleepers: list[subprocess.Popen] = []
    try:
        hosts = _made(sleepers) if shutil.which("ip") and shutil.which("nsenter") else None
        yield hosts
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def _made(sleepers: list[subprocess.Popen]) -> list[Host] | None:
    sleep = ("sleep", "infinity")
    sleepers.append(subprocess.Popen(["unshare", "--user", "--map-root-user", "--net", *sleep], **SILENT))
    if not _asleep(sleepers[0]):
        return None
    first = Host(0, sleepers[0])
    sleepers.append(subprocess.Popen(first.command("unshare", "--net", *sleep), **SILENT))
    if not _asleep(sleepers[1]):
        return None
    hosts = [first, Host(1, sleepers[1])]
    peer = ("peer", "name", hosts[1].interface, "netns", str(hosts[1].pid))
    try:
        first.ip("link", "add", first.interface, "type", "veth", *peer)
        for host in hosts:
            host.ip("address", "add", f"{host.address}/24", "dev", host.interface)
            host.ip("link", "set", "lo", "up")
            host.ip("link", "set", host.interface, "up")
    except subprocess.CalledProcessError:
        return None
    return hosts


def _asleep(sleeper: subprocess.Popen) -> bool:
    """Waits until a process sleeps, which it does in its namespace."""
    name = Path(f"/proc/{sleeper.pid}/comm")
    while sleeper.poll() is None:
        if name.read_text().strip() == "sleep":
            return True
        time.sleep(0.01)
    return False
