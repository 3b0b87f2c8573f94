"""Helpers for tests of prepared text: its lines and files, and a kill at a step."""

from __future__ import annotations

import os
import signal
import sys


def lines(path) -> list[str]:
    """Read lines; only "\n" ends a line, and the last line must have one."""
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return text[:-1].split("\n")


def content(dest) -> dict[str, bytes]:
    """Return the files of a prepared corpus, path -> bytes."""
    names = ("bin", "reference", "recipe.json", "spm.model")
    files = [path for name in names for path in [dest / name, *(dest / name).rglob("*")]]
    return {str(path.relative_to(dest)): path.read_bytes() for path in files if path.is_file()}


def killed_at(step: str, build) -> None:
    """Run build() in a child process, which gets SIGKILL as soon as it announces the step."""
    read, write = os.pipe()
    if not (child := os.fork()):
        sys.stdout = open(write, "w", buffering=1)  # noqa: SIM115
        build()
        os._exit(0)
    os.close(write)
    with open(read) as out:
        assert any(line == f"== {step}\n" for line in out)
        os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
