"""Asks the warm process for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

BIN, SERVER = Path(sys.executable).parent, Path(__file__).with_name("server.py")
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
BYTECODE = tempfile.TemporaryDirectory()


@cache
def server() -> subprocess.Popen:
    """One for all tests of this process; it ends with it."""
    return subprocess.Popen(
        [sys.executable, str(SERVER), BYTECODE.name], env=os.environ | ENVIRONMENT, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip


def run(
    words: list[str], folder: str | Path, seconds: int = 600, memory: int = 0, **environment: str
) -> subprocess.CompletedProcess:
    """A program of this environment's bin folder, or -m and a module, started in `folder` with nothing to read.

    seconds, memory: how long it may run, and how many bytes more than torch and fairseq it may use; 0 is no bound.
    environment: what is not as here; nothing that Python reads before it runs anything, but PYTHONPATH.
    """
    process = server()
    program = words[0] if words[0] == "-m" else str(BIN / words[0])
    with tempfile.TemporaryDirectory() as room:
        out, errors = Path(room, "out"), Path(room, "errors")
        request = {
            "words": [program, *words[1:]], "folder": str(folder), "out": str(out), "errors": str(errors),
            "environment": os.environ | ENVIRONMENT | environment, "seconds": seconds, "memory": memory,
        }  # fmt: skip
        print(json.dumps(request), file=process.stdin, flush=True)
        status = int(process.stdout.readline())
        printed = (path.read_text(encoding="utf-8", errors="replace") for path in (out, errors))
        return subprocess.CompletedProcess(words, status, *printed)
