"""What a part of the list works with: its folder, its time, and programs that end when it ends.

A part is one entry of the list. It runs in a process of its own, which may be killed when its time is over ("cut off"),
with all programs that it started. What it measured are rows: dictionaries, for the record of this try.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from deepnet_fairseq.files import whole

from .records import ROOT

# Files of a part's folder, from which the record is made: its rows, one a line; the share of its work that it has done;
# and the row of the training that runs, which counts only if the part is cut off.
ROWS, SHARE, SO_FAR = "rows.jsonl", "share", "so_far.json"
PYTHON = sys.executable
POLL = 0.5  # seconds between looks at whether a program still runs
LOOK = 5.0  # seconds between looks at what it has done


class PartFailed(Exception):
    """A program of a part failed. The text is one line, which names the program and says what happened."""


@dataclass
class Work:
    """The place and the time of one part."""

    folder: Path  # for all that it writes
    text: Path  # folder of the prepared texts, see text.py: language and perhaps mix, both binarised
    until: float  # moment of time.monotonic() at which it has to be over
    # seconds that one part may take at most in this call of dev/gpu_minutes.sh, here of one of nine minutes
    longest: float = 480.0
    miniature: bool = False  # whether it has tiny models, and a CPU in place of the GPU
    records: list[dict] = field(default_factory=list)  # of all tries of parts before this one, the oldest first

    @property
    def corpus(self) -> Path:
        """The text for parts that score no translations: German-English if it is there, else the generated language."""
        mix = self.text / "mix"
        return mix if mix.exists() else self.text / "language"

    def seconds_left(self) -> float:
        """Return the seconds until the part has to be over."""
        return self.until - time.monotonic()

    def share(self, done: float) -> None:
        """Note the share of the part's work that is done, from 0 to 1.

        If the part is cut off, the seconds that the next try needs are predicted from it.
        """
        with whole(self.folder / SHARE) as new_file:  # minutes.py may read at any moment: the old one or the new one
            new_file.write_text(f"{done:.3f}", encoding="utf-8")

    def so_far(self, row: dict) -> None:
        """Note a row as far as it is known, which the record gets if the part is cut off now."""
        with whole(self.folder / SO_FAR) as new_file:
            new_file.write_text(json.dumps(row), encoding="utf-8")

    def start(self, command: list, name: str, out: Path | None = None) -> subprocess.Popen:
        """Start a program in the project's root and return its process.

        command: its words, of types that str turns into text. FOLDER/NAME.log gets a line "$ COMMAND" and what the
        program prints. out: another file for its standard output, None for none.
        """
        words = [str(word) for word in command]
        with open(self.log(name), "a", encoding="utf-8") as errors:
            errors.write(f"$ {shlex.join(words)}\n")
            errors.flush()
            if out is None:
                return subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
            with open(out, "w", encoding="utf-8") as output:
                return subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)

    def wait(self, process: subprocess.Popen, look: Callable[[], None] | None = None) -> int:
        """Wait for a program to end and return its exit status. look: is called every LOOK seconds meanwhile."""
        looked = time.monotonic()
        while process.poll() is None:
            time.sleep(POLL)
            if look is not None and time.monotonic() > looked + LOOK:
                look()
                looked = time.monotonic()
        return process.returncode

    def run(
        self,
        command: list,
        name: str,
        out: Path | None = None,
        allowed: tuple[int, ...] = (0,),
        look: Callable[[], None] | None = None,
    ) -> int:
        """Run a program to its end; return its exit status, which must be one of `allowed`, else PartFailed.

        command, name, out: as in `start`; look: as in `wait`.
        """
        status = self.wait(self.start(command, name, out), look)
        if status not in allowed:
            raise PartFailed(f"{name} ended with status {status}: {last_line(self.log(name))}")
        return status

    def log(self, name: str) -> Path:
        """Return the file FOLDER/NAME.log, which `start` writes for the program with that name."""
        return self.folder / f"{name}.log"


def last_line(log: Path) -> str:
    """Return the last line of a log that is not blank, cut to 300 characters; "no message" if all are blank."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    lines = [line.strip() for line in lines if line.strip()]
    return lines[-1][:300] if lines else "no message"


def kill(process: subprocess.Popen) -> None:
    """Kill a program with SIGKILL, as when the machine is lost, and wait until it is gone."""
    process.send_signal(signal.SIGKILL)
    process.wait()
