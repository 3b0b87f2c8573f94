"""One shell for a page: a command after the other, each with its status, its time and what it printed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# folder, variables and functions are kept in the file $0; a command is done when all of it is: -e, pipefail
SCRIPT = """
[ ! -s "$0" ] || source "$0" 2>/dev/null
set -e -o pipefail
trap '{ declare -p; declare -f; printf "cd -- %q\\n" "$PWD"; } >"$0"' EXIT
eval "$1"
"""
OURS = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "PS1")


@dataclass(frozen=True)
class Done:
    """A command that has ended: its status (None if it was stopped by the time limit), seconds, stdout and stderr."""

    command: str
    status: int | None
    seconds: float
    output: str


def reader_environment(**more: str) -> dict[str, str]:
    """What a reader's shell has: this process's environment without the Python environment it runs in."""
    ours = {str(Path(sys.executable).parent)}
    path = os.pathsep.join(place for place in os.environ["PATH"].split(os.pathsep) if place not in ours)
    kept = {name: value for name, value in os.environ.items() if name not in OURS and not name.startswith("PYTEST_")}
    return kept | {"PATH": path} | more


class Shell:
    """What is exported, set or changed into by one command holds for the next; nothing can be read from stdin."""

    def __init__(self, folder: Path, environment: dict[str, str]):
        self.folder, self.environment = folder, environment
        self.room = tempfile.TemporaryDirectory()
        self.state = Path(self.room.name) / "state"

    def run(self, command: str, limit: float | None = None) -> Done:
        """limit: seconds until the command, and all it started, is killed."""
        start, out = time.monotonic(), Path(self.room.name) / "out"
        with out.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", SCRIPT, str(self.state), command], cwd=self.folder, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                with contextlib.suppress(ProcessLookupError):  # nothing that it started lives on
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return Done(command, status, time.monotonic() - start, out.read_text(encoding="utf-8", errors="replace"))
