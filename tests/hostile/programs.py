"""What a program made of an input: its status, what it printed, and what it left."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from ..support.forked import fork

LONGEST = 600  # characters of a line that explains; paths of tests are long
SECONDS, MEMORY = 60, 2 << 30  # of a program; a file that claims to hold more than there is must not be believed
OPENING = {f"fairseq-{what}": ("-m", "tests.hostile.opening", what) for what in ("checkpoint", "data", "profile")}


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
    """Runs fairseq's programs and `deepnet`, one after another, in `folder`: nothing is taken from where tests run."""

    def __init__(self, folder: Path):
        self.folder = folder

    def run(self, *words) -> Outcome:
        words = [str(word) for word in words]
        done = fork([*OPENING.get(words[0], words[:1]), *words[1:]], self.folder, SECONDS, MEMORY)
        return Outcome(done.returncode, done.stdout + done.stderr)


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
