"""What the tests of prepared text share: its lines and files, a kill at a step."""

from __future__ import annotations

import os
import signal
import sys


def lines(path) -> list[str]:
    """Ended by \\n alone, the last one too."""
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return text[:-1].split("\n")


def content(dest) -> dict[str, bytes]:
    """What a prepared corpus is: path -> bytes."""
    names = ("bin", "reference", "recipe.json", "spm.model")
    files = [path for name in names for path in [dest / name, *(dest / name).rglob("*")]]
    return {str(path.relative_to(dest)): path.read_bytes() for path in files if path.is_file()}


def killed_at(step: str, build) -> None:
    """build() in a process that gets SIGKILL as soon as it says that the step begins."""
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
