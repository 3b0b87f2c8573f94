"""Run the programs of a cell (a training of plan.toml, see cells.py), and add up what they take.

A cell is attempted once more whenever run.py finds it begun and not over: its programs resume or begin anew.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

from deepnet_fairseq.files import whole
from deepnet_fairseq.study.runner import Runner

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class Failed(Exception):
    """A program of a cell ended with an error; the text names the cell, and the log that has the program's messages."""


class Programs:
    """One attempt to run the programs of a cell, one after the other.

    run: the cell's folder. Its file spent.json holds, over all attempts, "processor_seconds", the number of "attempts",
    and "peak_memory_bytes", the memory of the largest program. work: the folder whose file PAUSE suspends the programs.
    spent: the content of spent.json without the program that runs now.
    """

    def __init__(self, work: Path, run: Path):
        """Begin an attempt, and count it in spent.json."""
        self.runner = Runner(jobs=1, pause=work / "PAUSE", show=self._note_running)
        self.file = run / "spent.json"
        self.spent = {"processor_seconds": 0.0, "attempts": 0, "peak_memory_bytes": 0}
        if self.file.exists():  # of earlier attempts
            self.spent = json.loads(self.file.read_text())
        self.spent["attempts"] += 1
        self._write_spent(seconds=0.0, peak=0)

    async def run(self, command: list[str], log: Path, output: Path | None = None) -> int:
        """Run a program to its end, add what it took to `spent`, and return its exit status.

        log: file that gets what the program prints; output: another file for its standard output, None for `log`.
        """
        ended = await self.runner.program(command, log=log, output=output, variables=VARIABLES, folder=ROOT)
        self.spent = self._write_spent(seconds=ended.processor_seconds, peak=ended.peak_memory)
        return ended.status

    def _note_running(self) -> None:
        """Write what is spent so far while a program runs, so that its seconds count even if all is killed."""
        self._write_spent(seconds=self.runner.processor_seconds(), peak=0)

    def _write_spent(self, seconds: float, peak: int) -> dict:
        """Write `spent` and what a program took beside it into spent.json; return that sum and leave `spent` alone.

        seconds: processor seconds of the program; peak: bytes of its memory, 0 while they are not known.
        """
        now_spent = self.spent | {
            "processor_seconds": round(self.spent["processor_seconds"] + seconds, 1),
            "peak_memory_bytes": max(self.spent["peak_memory_bytes"], peak),
        }
        with whole(self.file) as part:
            part.write_text(json.dumps(now_spent))
        return now_spent


def relative(command: list) -> str:
    """Return a command line for a record, without this machine's folders.

    The interpreter's path becomes "python", and any other absolute path the name of its file. command: its words, of
    any type that str turns into text.
    """
    words = []
    for word in map(str, command):
        if word == sys.executable:
            words.append("python")
        else:
            words.append(re.sub(r"^/.*/", "", word))
    return shlex.join(words)
