"""What the tests of prepared text share: its lines and files, a kill at a step, a quicker fairseq-preprocess."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

from deepnet_fairseq.data import binarise

from .forked import fork


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
        os.close(read)
        sys.stdout = open(write, "w", buffering=1)  # noqa: SIM115
        build()
        os._exit(0)
    os.close(write)
    with open(read) as out:
        assert any(line == f"== {step}\n" for line in out)
        os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def preprocess_in_a_fork(patch) -> None:
    """fairseq-preprocess in a fork of this process, which takes a second and not seven."""

    def run(command, cwd, **_):
        done = fork(command[1:], cwd)
        return subprocess.CompletedProcess(command, done.returncode, done.stdout + done.stderr)

    patch.setattr(binarise, "subprocess", SimpleNamespace(run=run, PIPE=None, STDOUT=None))
