"""One life of a training: its processes from their start to their death, and what they say meanwhile."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import re
import signal
import time
from pathlib import Path
from statistics import median

from deepnet_fairseq.plugin.distributed import launch

from ..support.helpers import USER_DIR
from ..support.lives import rows
from ..support.ranks import be_rank, free_port

START, VALIDATES, VALIDATED = "Start iterating over samples", 'begin validation on "', "| valid | {"
UPDATE, SAVES, SAVED = "| train_inner | {", "Preparing to save checkpoint", "Saved checkpoint"
FAILED = "the training goes on"
PHASES = ("start", "training", "validation", "saving")
POLL = 5e-4  # seconds
RUNS = 999  # in place of a status
FORK = multiprocessing.get_context("fork")
FLAGS = (  # a 2L-2L model of width 32 that saves and validates every third update
    "--user-dir", USER_DIR, "--cpu", "--arch", "deepnet_transformer", "--encoder-layers", "2", "--decoder-layers", "2",
    "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64", "--encoder-attention-heads", "2", "--dropout", "0.1",
    "--share-all-embeddings", "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1",
    "--lr", "2e-3", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "10", "--warmup-init-lr", "1e-7",
    "--clip-norm", "1.0", "--max-tokens", "300", "--num-workers", "0", "--log-format", "json", "--log-interval", "1",
    "--save-interval-updates", "3", "--keep-interval-updates", "2", "--no-epoch-checkpoints",
)  # fmt: skip


class Log:
    """A file that grows; reading it notes when each line was first seen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text, self.lines, self._read = "", [], 0  # lines: (moment, line)

    def read(self) -> str:
        """All that is there by now, in lines that are whole."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            new = new[: new.rfind(b"\n") + 1]
            self._read += len(new)
            text = new.decode()
            self.text += text
            self.lines += [(time.monotonic(), line) for line in text.splitlines()]
        return self.text

    def count(self, text: str) -> int:
        return self.read().count(text)

    def phase(self) -> str:
        """One of PHASES: what the training was at when it said its last."""
        last = {text: self.text.rfind(text) for text in (START, UPDATE, VALIDATES, VALIDATED, SAVES)}
        saved = max(self.text.rfind(SAVED), self.text.rfind(FAILED))
        if last[START] < 0 and last[UPDATE] < 0:
            return "start"
        if last[SAVES] > max(saved, last[UPDATE]):
            return "saving"
        return "validation" if last[VALIDATES] > max(last[VALIDATED], last[UPDATE], saved) else "training"

    def saved(self) -> int:
        """The last number of updates that it says it has saved; 0 without."""
        saves = self.text.split(SAVES)[1:]  # "... @ 3 updates" and what follows
        return max((int(re.search(r"@ (\d+)", save).group(1)) for save in saves if SAVED in save), default=0)

    def rows(self) -> dict:
        """(train_inner | train | valid, number of updates) -> what was logged, without what depends on the clock."""
        return rows(self.path) if self.text else {}

    def seconds(self, begin: str, end: str) -> float:
        """The median time from a line with `begin` to the next one with `end`, as seen; 0 without."""
        begun, times = None, []
        for moment, line in self.lines:
            if begun is not None and end in line:
                times.append(moment - begun)
                begun = None
            if begin in line:
                begun = moment
        return median(times) if times else 0.0


class Life:
    """`fairseq-train FLAGS` on some ranks, forked off this process, which has imported fairseq: half a second."""

    def __init__(self, flags: list[str], processes: int, log: Log) -> None:
        """What the ranks print goes to the file of `log`."""
        self.log, self.started = log, time.monotonic()
        port, words = free_port(), ["fairseq-train", *flags]
        self.begin([(n, processes, port, words, log.path) for n in range(processes)])

    def begin(self, ranks: list[tuple]) -> None:
        """ranks: the arguments of each one's be_rank."""
        self.members = [FORK.Process(target=be_rank, args=rank) for rank in ranks]
        for member in self.members:
            member.start()

    def statuses(self) -> list[int | None]:
        """Exit statuses by rank, -9 for one that was killed, None for one that lives."""
        return [member.exitcode for member in self.members]

    def pids(self) -> list[int]:
        """Of the ranks."""
        return [member.pid for member in self.members]

    def kill_worker(self, chance: random.Random) -> bool:
        """SIGKILL to a process that loads data for a rank; False if there is none."""
        found = [pid for rank in self.pids() for pid in children(rank)]
        with contextlib.suppress(ProcessLookupError):
            if found:
                os.kill(chance.choice(found), signal.SIGKILL)
                return True
        return False

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

    def kill(self, ranks: tuple[int, ...]) -> None:
        """SIGKILL to some ranks, or all; as one machine of several dies, or a training as a whole."""
        for rank in ranks:
            self.members[rank].kill()

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
        for member in self.members:
            member.kill()
            member.join()


class Launched(Life):
    """The same under a process that starts the ranks and waits for them, as torchrun does."""

    def begin(self, ranks: list[tuple]) -> None:
        self.found = FORK.Array("q", [0] * len(ranks) + [RUNS] * len(ranks))  # process ids, statuses
        self.launcher = FORK.Process(target=_be_launcher, args=(ranks, self.found))
        self.launcher.start()
        self.killed = False

    def pids(self) -> list[int]:
        return [pid for pid in self.found[: len(self.found) // 2] if pid]

    def statuses(self) -> list[int | None]:
        """Of ranks that nobody waits for any more -9, once they have ended."""
        number = len(self.found) // 2
        pids, known = self.found[:number], self.found[number:]
        if self.launcher.exitcode is not None:  # 0: never begun, which does not live either
            known = [status if status != RUNS or (pid and lives(pid)) else -9 for pid, status in zip(pids, known)]
        return [None if status == RUNS else status for status in known]

    def kill_launcher(self) -> None:
        self.launcher.kill()
        self.launcher.join()

    def bury(self) -> None:
        self.launcher.kill()
        self.launcher.join()
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _be_launcher(ranks: list[tuple], found) -> None:
    members = [FORK.Process(target=_be_launched, args=(os.getpid(), *rank)) for rank in ranks]
    for number, member in enumerate(members):
        member.start()
        found[number] = member.pid
    for number, member in enumerate(members):
        member.join()
        found[len(ranks) + number] = member.exitcode


def _be_launched(launcher: int, *rank) -> None:
    launch.end_with(launcher)
    be_rank(*rank)


def children(pid: int) -> list[int]:
    """Processes that one has started; none if it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def lives(pid: int) -> bool:
    """Is there a process of that number that has not ended?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
