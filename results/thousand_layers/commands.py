"""Programs of a cell, and what they take: processor seconds, memory, attempts."""

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
    """A program ended as it should not have; the text names its log."""


class Programs:
    """Programs of one cell, run one after the other by a Runner.

    run: the cell's folder. RUN/spent.json adds up the programs' processor seconds, those of killed attempts too, and
    has their largest memory. work: the folder whose file PAUSE suspends the programs.
    """

    def __init__(self, work: Path, run: Path):
        self.runner = Runner(jobs=1, pause=work / "PAUSE", show=self._note_running)
        self.file = run / "spent.json"
        self.spent = {"processor_seconds": 0.0, "attempts": 0, "peak_memory_bytes": 0}
        if self.file.exists():
            self.spent = json.loads(self.file.read_text())
        self.spent["attempts"] += 1
        self._note(seconds=0.0, peak=0)

    async def run(self, command: list[str], log: Path, output: Path | None = None) -> int:
        """Run a program to its end and return its status.

        log: file that gets what it prints; output: file for its standard output, None for `log`, too.
        """
        ended = await self.runner.program(command, log=log, output=output, variables=VARIABLES, folder=ROOT)
        self.spent = self._note(seconds=ended.processor_seconds, peak=ended.peak_memory)
        return ended.status

    def _note_running(self) -> None:
        self._note(seconds=self.runner.processor_seconds(), peak=0)

    def _note(self, seconds: float, peak: int) -> dict:
        """Write RUN/spent.json and return its content: `self.spent` with more processor seconds.

        peak: bytes of the memory of the program that took them; the larger one counts.
        """
        now_spent = self.spent | {
            "processor_seconds": round(self.spent["processor_seconds"] + seconds, 1),
            "peak_memory_bytes": max(self.spent["peak_memory_bytes"], peak),
        }
        with whole(self.file) as part:
            part.write_text(json.dumps(now_spent))
        return now_spent


def relative(command: list) -> str:
    """Return a command as a shell would read it, without this machine's paths: "python", and bare names of files."""
    words = []
    for word in map(str, command):
        if word == sys.executable:
            words.append("python")
        else:
            words.append(re.sub(r"^/.*/", "", word))
    return shlex.join(words)
