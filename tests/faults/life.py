"""One run of a training: its processes from start to end, and the events that its log reports."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import resource
import signal
import time
from pathlib import Path

from deepnet_fairseq.plugin.distributed import launch

from ..support.helpers import USER_DIR
from ..support.ranks import be_rank, free_port

# what the log's lines on a save contain
SAVES = "Preparing to save checkpoint"  # it begins
SAVED = "Saved checkpoint"  # it has ended
FAILED = "the training goes on"  # it has failed
PHASES_AFTER = {  # words of a line of the log -> phase of the training after it
    "Start iterating over samples": "training",
    "| train_inner | {": "training",
    'begin validation on "': "validation",
    "| valid | {": "training",
    SAVES: "saving",
    SAVED: "training",
    FAILED: "training",
}
PHASES = ("start", "training", "validation", "saving")  # "start" lasts until the first of these words
POLL = 1e-3  # seconds between two looks at a log or a process
RUNS = 999  # stands for the exit status of a running process
FORK = multiprocessing.get_context("fork")
FLAGS = (  # 2L-2L model of width 32, saved and validated every third update
    "--user-dir", USER_DIR, "--cpu", "--arch", "deepnet_transformer", "--encoder-layers", "2", "--decoder-layers", "2",
    "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64", "--encoder-attention-heads", "2", "--dropout", "0.1",
    "--share-all-embeddings", "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1",
    "--lr", "2e-3", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "10", "--warmup-init-lr", "1e-7",
    "--clip-norm", "1.0", "--max-tokens", "300", "--num-workers", "0", "--log-format", "json", "--log-interval", "1",
    "--save-interval-updates", "3", "--keep-interval-updates", "2", "--no-epoch-checkpoints",
)  # fmt: skip


def phase(log: str) -> str:
    """Return the phase of a training, one of PHASES, as its log shows it."""
    last_words = max(PHASES_AFTER, key=log.rfind)  # those that occur last; rfind is -1 for words that do not occur
    return PHASES_AFTER[last_words] if last_words in log else "start"


def saved(log: str) -> int:
    """Return the number of updates in the last save that a log reports as ended, 0 if there is none."""
    last = 0
    _, *saves = log.split(SAVES)  # each is "... @ 3 updates" and what follows until the next
    for save in saves:
        if SAVED in save:
            updates = int(re.search(r"@ (\d+)", save)[1])
            last = max(last, updates)
    return last


class Life:
    """One run of `fairseq-train FLAGS` under a launcher, forked off this process after it imported fairseq.

    pids: process numbers of the ranks, in shared memory; launcher: the process that started them; log: file of what
    all ranks print
    """

    def __init__(self, flags: list[str], processes: int, log: Path) -> None:
        """Start the processes, wait until all ranks have begun, and let their output go to the file `log`."""
        self.log = log
        self.pids = FORK.Array("q", processes)  # 64-bit integers, 0 until the launcher has started the rank
        self._statuses = FORK.Array("q", [RUNS] * processes)
        port = free_port()
        words = ["fairseq-train", *flags]
        ranks = [(number, processes, port, words, log) for number in range(processes)]  # arguments of be_rank
        self.launcher = FORK.Process(target=_launch, args=(ranks, self.pids, self._statuses))
        self.launcher.start()
        while not all(self.pids):
            time.sleep(POLL)

    def said(self) -> str:
        """Return the content of the log so far."""
        return self.log.read_text() if self.log.exists() else ""

    def statuses(self) -> list[int | None]:
        """Return the ranks' exit statuses, as the launcher noted them: None for a running rank.

        A rank whose launcher was killed first, and that has ended since, has -9, the status by SIGKILL.
        """
        launcher_runs = self.launcher.is_alive()
        statuses: list[int | None] = []
        for pid, status in zip(self.pids, self._statuses):
            if status != RUNS:
                statuses.append(status)
            elif launcher_runs or lives(pid):  # a rank that has just ended counts as running until it is noted
                statuses.append(None)
            else:
                statuses.append(-signal.SIGKILL)
        return statuses

    @property
    def alive(self) -> bool:
        """True as long as any rank runs."""
        return None in self.statuses()

    def reaches(self, text: str, times: int) -> bool:
        """Wait until `text` appears in the log `times` more times; return whether any rank still runs."""
        goal = self.said().count(text) + times
        while self.alive and self.said().count(text) < goal:
            time.sleep(POLL)
        return self.alive

    def wait(self, seconds: float) -> list[int | None]:
        """Wait for all ranks to end, at most `seconds`; return their exit statuses."""
        deadline = time.monotonic() + seconds
        while self.alive and time.monotonic() < deadline:
            time.sleep(POLL)
        return self.statuses()

    def limit_files(self, size: int) -> None:
        """Let the ranks write no file beyond `size` bytes from now on, which acts as a full disk."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def kill(self, pids: list[int]) -> None:
        """Send SIGKILL to these processes, of which some may have ended."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the launcher and the remaining ranks."""
        self.kill([self.launcher.pid, *self.pids])
        self.launcher.join()


def _launch(ranks: list[tuple], pids, statuses) -> None:
    """Start the ranks, note their process numbers in `pids`, wait for them all, and note their exit statuses.

    ranks: arguments of be_rank for each.
    """
    members = [FORK.Process(target=_be_launched, args=(os.getpid(), *rank)) for rank in ranks]
    for number, member in enumerate(members):
        member.start()
        pids[number] = member.pid
    for number, member in enumerate(members):
        member.join()
        statuses[number] = member.exitcode


def _be_launched(launcher: int, *rank) -> None:
    """Run a rank that the package ends when its launcher ends; launcher: the launcher's process number."""
    launch.end_with(launcher)
    be_rank(*rank)


def children(pid: int) -> list[int]:
    """Return the child processes of a process; none if it has ended."""
    try:
        numbers = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(number) for number in numbers.split()]


def lives(pid: int) -> bool:
    """Return whether the process `pid` exists and has not ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    _, _, after_name = status.rpartition(")")  # of "PID (NAME) STATE ..."
    state = after_name.split()[0]
    return state not in "ZX"  # a zombie, or dead
