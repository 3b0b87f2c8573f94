"""Commands of a cell: held while a file PAUSE is there, killed with whoever started them, their costs added up."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from deepnet_fairseq.files import whole

ROOT = Path(__file__).resolve().parents[2]
POLL = 0.5  # seconds between looks at PAUSE
NOTED = 30.0  # seconds between two notes of what a training has taken
DIED_WITH_PARENT = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


class Failed(Exception):
    """A program ended as it should not have; the text names its log."""


class PausableRunner:
    """Runner of one cell's commands: each is suspended while WORK/PAUSE exists, and dies with this process.

    RUN/spent.json adds up their processor seconds, those of killed attempts too, and has their largest memory.
    """

    def __init__(self, work: Path, run: Path):
        self.pause, self.file = work / "PAUSE", run / "spent.json"
        self.spent = {"processor_seconds": 0.0, "attempts": 0, "peak_memory_bytes": 0}
        if self.file.exists():
            self.spent = json.loads(self.file.read_text())
        self.spent["attempts"] += 1
        self._note(0.0, 0)
        self.child: subprocess.Popen | None = None

    def run(self, command: list[str], log: Path, out: Path | None = None) -> int:
        """Run a command to its end and return its status; `log` gets what it prints, `out` its standard output.

        What the log has stays in front.
        """
        while self.pause.exists():
            time.sleep(POLL)
        variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with open(log, "ab") as errors, open(out or log, "wb" if out else "ab") as output:
            self.child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, cwd=ROOT, env=variables,
                start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
        status = self._wait(self.child)
        self.child = None
        return status

    def _wait(self, child: subprocess.Popen) -> int:
        held, noted = False, time.monotonic()
        while True:
            ended, status, usage = os.wait4(child.pid, os.WNOHANG)
            if ended:
                break
            if self.pause.exists() != held:
                held = not held
                os.killpg(child.pid, signal.SIGSTOP if held else signal.SIGCONT)
            if time.monotonic() > noted + NOTED:
                self._note(processor_seconds(child.pid), 0)
                noted = time.monotonic()
            time.sleep(POLL)
        self.spent = self._note(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
        child.returncode = os.waitstatus_to_exitcode(status)
        return child.returncode

    def _note(self, seconds: float, peak: int) -> dict:
        """Write what the commands have taken so far."""
        now_spent = self.spent | {
            "processor_seconds": round(self.spent["processor_seconds"] + seconds, 1),
            "peak_memory_bytes": max(self.spent["peak_memory_bytes"], peak),
        }
        with whole(self.file) as part:
            part.write_text(json.dumps(now_spent))
        return now_spent

    def stop(self) -> None:
        """End the command as SIGTERM does: fairseq-train saves what it has."""
        if self.child:
            os.killpg(self.child.pid, signal.SIGTERM)
            os.killpg(self.child.pid, signal.SIGCONT)
            self.child.wait()


def processor_seconds(pid: int) -> float:
    """Processor seconds that a running process has used, from Linux's /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def die_with_parent() -> None:
    """Ask Linux to kill this process with the one that started it; runs in the child, before its program."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIED_WITH_PARENT, signal.SIGKILL)


def relative(command: list) -> str:
    """Print a command without this machine's paths."""
    words = ["python" if str(word) == sys.executable else re.sub(r"^/.*/", "", str(word)) for word in command]
    return shlex.join(words)
