"""Helpers for tests of prepared text: its lines and files, and a kill at a step."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

# Files and folders of a prepared corpus that stay when its text and downloads are removed.
OF_A_CORPUS = ("bin", "reference", "recipe.json", "spm.model")


def lines_of(path: Path) -> list[str]:
    """Read the lines of a file; only LF ends a line, and the last line must end too."""
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return text[:-1].split("\n")


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the content of every file in a folder and the folders within, by its path from there."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def corpus_files(dest: Path) -> dict[str, bytes]:
    """Return the content of those files of a prepared corpus that are in OF_A_CORPUS, by their paths in its folder."""
    return {name: content for name, content in files_in(dest).items() if name.split("/")[0] in OF_A_CORPUS}


def kill_at_step(step: str, build: Callable[[], object]) -> None:
    """Run build() in a fork of this process, which gets SIGKILL as soon as it prints "== STEP"."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        sys.stdout = open(write, "w", buffering=1)  # line by line  # noqa: SIM115
        build()
        os._exit(0)

    os.close(write)
    with open(read) as out:
        assert any(line == f"== {step}\n" for line in out)  # reads until the step is there
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
