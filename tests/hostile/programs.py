"""What a program made of an input: its status, what it printed, and what it left."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ..helpers import ROOT

LONGEST = 600  # characters of a line that explains; paths of tests are long


@dataclass(frozen=True)
class Outcome:
    """status: of the program, negative for a signal; printed: its output and errors."""

    status: int
    printed: str

    def check_refusal(self, *words: str) -> None:
        """One line that says error and all of `words`; no traceback; a status that tells."""
        assert self.status in (1, 2), (self.status, self.printed[-3000:])
        assert "Traceback" not in self.printed, self.printed[-3000:]
        lines = [line for line in self.printed.splitlines() if "error: " in line]
        assert len(lines) == 1, self.printed[-3000:]
        for word in words:
            assert word in lines[0], (word, lines[0])
        assert len(lines[0]) < LONGEST, lines[0]


class Programs:
    """Runs fairseq's programs and `deepnet`, one after another, in forks of a warm process."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.server"], cwd=ROOT, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *words) -> Outcome:
        """In a folder of its own, so that nothing is taken from where the tests run."""
        out = self.folder / "printed"
        out.write_bytes(b"")
        request = {"words": [str(word) for word in words], "folder": str(self.folder), "out": str(out)}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        status = json.loads(self.process.stdout.readline())
        return Outcome(status, out.read_text(encoding="utf-8", errors="replace"))

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)


def contents(*places: Path) -> dict[str, str]:
    """Name -> digest of every file below `places`; what is no ordinary file by its kind alone."""
    found = {}
    for path in (path for place in places for path in [place, *place.rglob("*")]):
        if path.is_symlink():
            found[str(path)] = f"link to {os.readlink(path)}"
        elif path.is_file():
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif not path.is_dir():
            found[str(path)] = "special"
    return found
