"""One life of a training: its processes from their start to their death, and what they say meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .log import Log

POLL = 5e-4  # seconds
FORK = multiprocessing.get_context("fork")


class Life:
    """Processes forked off this one, which has imported fairseq already: a life takes half a second, not five."""

    def __init__(self, flags: list[str], processes: int, log: Log) -> None:
        """Starts `fairseq-train FLAGS` on `processes` ranks; what they print goes to the file of `log`."""
        self.log = log
        self.started = time.monotonic()
        self._members = list(self._start(flags, processes))

    def _start(self, flags: list[str], processes: int) -> Iterator:
        port = free_port()
        for rank in range(processes):
            member = FORK.Process(target=_train, args=(flags, self.log.path, launched(rank, processes, port)))
            member.start()
            yield member

    def statuses(self) -> list[int | None]:
        """Exit statuses by rank, -9 for one that was killed, None for one that lives."""
        return [member.exitcode for member in self._members]

    def ranks(self) -> list[int]:
        """Process ids by rank."""
        return [member.pid for member in self._members]

    @property
    def alive(self) -> bool:
        return None in self.statuses()

    def reaches(self, text: str, times: int = 1, delay: float = 0.0) -> bool:
        """Waits until `text` was said `times` times more, and `delay` seconds longer; False if the life ended before.

        An empty `text` is said at once.
        """
        goal = self.log.count(text) + times if text else 0
        while text and self.log.read().count(text) < goal:
            if not self.alive:
                return False
            time.sleep(POLL)
        time.sleep(delay)
        self.log.read()
        return self.alive

    def kill(self, ranks: list[int]) -> None:
        """SIGKILL to some ranks, or all; as one machine of several dies, or a training as a whole."""
        for rank in ranks:
            self._members[rank].kill()

    def wait(self, seconds: float) -> list[int | None]:
        """Waits for every rank's end; the exit statuses, None for one that lives after that many seconds."""
        deadline = time.monotonic() + seconds
        while self.alive and time.monotonic() < deadline:
            time.sleep(POLL)
            self.log.read()
        self.log.read()
        return self.statuses()

    def bury(self) -> None:
        """Kills what is left."""
        for member in self._members:
            member.kill()
            member.join()


class Launched(Life):
    """The same as a user starts it: fairseq-train, by torchrun on several processes; five seconds until it trains."""

    def _start(self, flags: list[str], processes: int) -> Iterator:
        programs = Path(sys.executable).parent
        command = [str(programs / "fairseq-train"), *flags]
        if processes > 1:
            rendezvous = ("--nproc_per_node", str(processes), "--master_port", str(free_port()), "--no-python")
            command = [str(programs / "torchrun"), *rendezvous, *command]
        with open(self.log.path, "ab") as log:
            yield subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._processes = processes
        self._workers: list[int] = []  # of a launcher that was killed

    def statuses(self) -> list[int | None]:
        """The launcher's; None while one of its processes lives."""
        status = self._members[0].poll()
        return [None if any(map(_lives, self._workers)) else status]

    def ranks(self) -> list[int]:
        launcher = self._members[0].pid
        if self._processes == 1 or not self.alive:
            return [launcher] if self.alive else []
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        return [int(pid) for pid in children]

    def kill(self, ranks: list[int]) -> None:
        workers = self.ranks()
        if len(ranks) < self._processes == len(workers):
            with suppress(ProcessLookupError):
                os.kill(workers[ranks[0]], signal.SIGKILL)
        else:  # the launcher, whose processes, sessions of their own, end with it; or before it has launched them
            self._workers = workers
            self.bury()

    def bury(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._members[0].pid, signal.SIGKILL)
        self._members[0].wait()


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def free_port() -> int:
    """A port that nothing listened on a moment ago; below the range that the kernel gives to connections."""
    while True:
        port = random.SystemRandom().randint(12_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def launched(rank: int, processes: int, port: int) -> dict[str, str]:
    """The environment that torchrun gives to a rank."""
    if processes == 1:
        return {}
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def _train(flags: list[str], log: Path, environment: dict[str, str]) -> None:
    """fairseq-train in a process that was forked: its streams, its environment, its way of ending."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.environ.update(environment)
    sys.argv = [str(Path(sys.executable).parent / "fairseq-train"), *flags]
    from fairseq_cli.train import cli_main

    try:
        cli_main()
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
