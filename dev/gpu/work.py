"""What a part of the list works with: its folder, its time, and programs that end when it ends."""

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

ROWS, SHARE, SO_FAR = "rows.jsonl", "share", "so_far.json"  # files of a part's folder, for the record
PYTHON = sys.executable
POLL = 0.5  # seconds between looks at whether a program still runs
LOOK = 5.0  # seconds between looks at what it has done


class PartFailed(Exception):
    """A program of a part ended as it should not have. The text is one line that names its log."""


@dataclass
class Work:
    """Folder, time and device of one part.

    folder: for all that it writes. text: the prepared text. until: moment of time.monotonic() at which it has to be
    over. longest: seconds that one part may take at most in this call. miniature: tiny models, and a CPU in place of
    the GPU. records: of the parts that ran before.
    """

    folder: Path
    text: Path
    until: float
    longest: float = 480.0
    miniature: bool = False
    records: list[dict] = field(default_factory=list)

    @property
    def corpus(self) -> Path:
        """Return the text of parts that measure no translations: German-English, or the language if that is missing."""
        mix = self.text / "mix"
        return mix if mix.exists() else self.text / "language"

    def seconds_left(self) -> float:
        """Return the seconds until the part has to be over."""
        return self.until - time.monotonic()

    def share(self, done: float) -> None:
        """Note which share of the part is over, from 0 to 1, for the plan of the next try if it is cut off."""
        with whole(self.folder / SHARE) as part:
            part.write_text(f"{done:.3f}", encoding="utf-8")

    def so_far(self, row: dict) -> None:
        """Note what is known already, for the record if the part is cut off."""
        with whole(self.folder / SO_FAR) as part:
            part.write_text(json.dumps(row), encoding="utf-8")

    def start(self, command: list, name: str, out: Path | None = None) -> subprocess.Popen:
        """Start a program from the project's root. FOLDER/NAME.log gets what it prints; `out`, its standard output."""
        words = [str(word) for word in command]
        with open(self.log(name), "a", encoding="utf-8") as errors:
            errors.write(f"$ {shlex.join(words)}\n")
            errors.flush()
            if out is None:
                return subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
            with open(out, "w", encoding="utf-8") as output:
                return subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)

    def wait(self, process: subprocess.Popen, look: Callable[[], None] | None = None) -> int:
        """Wait for a program and return its status; `look` is called now and then meanwhile."""
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
        """Run a program to its end; return its status, which must be one of `allowed`, else PartFailed."""
        status = self.wait(self.start(command, name, out), look)
        if status not in allowed:
            raise PartFailed(f"{name} ended with status {status}: {last_line(self.log(name))}")
        return status

    def log(self, name: str) -> Path:
        """Return the file for what a program prints."""
        return self.folder / f"{name}.log"


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty, cut to the length of a message."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    lines = [line.strip() for line in lines if line.strip()]
    return lines[-1][:300] if lines else "no message"


def kill(process: subprocess.Popen) -> None:
    """Kill a program as an out-of-memory killer or a lost machine does, and wait until it is gone."""
    process.send_signal(signal.SIGKILL)
    process.wait()
