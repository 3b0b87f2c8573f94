"""Tests of scripts/setup.sh and a new user's mistakes, with fast stand-ins for Python, pip and the compiler."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from ..support.experiments import until
from ..support.helpers import ROOT

OFFLINE = "Failed to establish a new connection: [Errno 111] Connection refused"
PYTHON = """#!/bin/bash
name="$(basename "$0")"
case "$*" in
    "-c import ensurepip, venv") exit "${NO_VENV:-0}" ;;
    "-c import sys; sys.exit("*) [[ "$name" == python3.1[12] ]] ;;
    "-c import sys; print("*) echo "$name" ;;
    "-c import sysconfig; "*) echo /include ;;
    "-m venv "*)
        mkdir -p "$3/bin" "$3/lib/$name/site-packages"
        ln -s "$0" "$3/bin/python"
        ln -s "$(dirname "$0")/pip" "$3/bin/pip"
        echo "VIRTUAL_ENV='$3'" >"$3/bin/activate" ;;
    *) echo "Python of $name" ;;
esac
"""
# A package is there once its dist-info has INSTALLER. PIP_FAILS, PIP_HANGS: words of the call that fails or waits.
PIP = """#!/bin/bash
echo "$*" >>"$CALLS"
case "$*" in
    *"${PIP_FAILS:-nothing}"*) echo "${PIP_SAYS:-}" >&2; exit 1 ;;
    *--dry-run*) exit 1 ;;
esac
site="$(echo "$(dirname "$0")"/../lib/python*/site-packages)"
case "$*" in
    *torch==*) package=torch-2.13.0+cpu ;;
    *fairseq-fixed*) package=fairseq_fixed-0.12.3.1 ;;
    *numpy*) package=numpy-2.4.6 ;;
    *) package=deepnet_fairseq-1 ;;
esac
mkdir -p "$site/$package.dist-info"
case "$*" in *"${PIP_HANGS:-nothing}"*) : >"$CALLS.hangs"; exec sleep 60 ;; esac  # no child: bash would outlive Ctrl-C
touch "$site/$package.dist-info/INSTALLER"
"""
NEEDED = ("basename", "bash", "cat", "cksum", "dirname", "env", "flock", "grep", "ln", "mkdir", "realpath", "rm", "sh",
          "sleep", "tail", "touch", "wc")  # fmt: skip
COMPILER = '#!/bin/bash\nexit "${NO_HEADERS:-0}"\n'
STEPS = ["torch==2.13.0+cpu", "numpy cython setuptools wheel", "fairseq-fixed", ".[dev]"]


class Clone:
    """Folder with the files that the set-up reads, in an environment of stand-ins alone."""

    def __init__(self, folder: Path):
        self.root, self.programs, self.calls = folder / "a clone", folder / "bin", folder / "calls"
        self.environment = {"PATH": str(self.programs), "CALLS": str(self.calls), "HOME": str(folder / "no home")}
        (self.root / "scripts").mkdir(parents=True)
        self.programs.mkdir()
        for file in ("setup.py", "scripts/setup.sh", "scripts/constraints.txt"):
            (self.root / file).write_bytes((ROOT / file).read_bytes())
        for name in NEEDED:
            (self.programs / name).symlink_to(shutil.which(name))
        for name, text in (("python3.11", PYTHON), ("pip", PIP), ("c++", COMPILER)):
            self.program(name, text)

    def program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def start(self, *words: str, **environment: str) -> subprocess.Popen:
        """Start `words`, by default the script, as the leader of a process group that reacts to Ctrl-C."""
        self.calls.write_text("")
        heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        return subprocess.Popen(
            words or ("bash", "scripts/setup.sh"), cwd=self.root, env=self.environment | environment, text=True,
            start_new_session=True, preexec_fn=heed, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def setup(self, *words: str, **environment: str) -> tuple[int, str]:
        """Run the script; return its status and the output of both streams."""
        process = self.start(*words, **environment)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def hangs(self, step: str) -> subprocess.Popen:
        """Start a set-up, and return it when it waits in this step."""
        process = self.start(PIP_HANGS=step)
        until(self.calls.with_suffix(".hangs").exists, seconds=30)
        return process

    def refuses(self, *words: str, **environment: str) -> str:
        """Check that a set-up fails with a reason in its last line; return its output."""
        status, output = self.setup(**environment)
        last = output.splitlines()[-1]
        assert status == 1 and last.startswith("setup: ") and all(word in last for word in words), output
        return output

    @property
    def steps(self) -> list[str]:
        """Return the steps, of STEPS, that pip ran in the last call."""
        lines = [line for line in self.calls.read_text().splitlines() if "--dry-run" not in line]
        return [step for line in lines for step in STEPS if step in line]

    @property
    def complete(self) -> bool:
        return (self.root / ".venv/complete").exists()


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


@pytest.fixture
def made(clone):
    """Provide a clone that is set up."""
    clone.setup()
    return clone


def test_from_nothing_and_again(clone):
    status, output = clone.setup()
    assert (status, clone.steps, clone.complete) == (0, STEPS, True), output
    assert (clone.setup(), clone.steps) == ((0, ""), [])


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("step", STEPS[::2])
def test_interrupted_it_goes_on(clone, step, kill):
    """An interrupted set-up continues: finished steps are kept, and a package without INSTALLER is repeated."""
    first = clone.hangs(step)
    os.killpg(first.pid, kill)
    assert first.wait(timeout=60) == -kill and not clone.complete
    status, output = clone.setup()
    assert (status, clone.complete) == (0, True) and "going on" in output, output
    assert clone.steps == STEPS[step != STEPS[0] :]


@pytest.mark.slow
def test_steps_that_fail(clone):
    """A failed step names an index that does not answer; for other failures it shows the end of the log."""
    failing = {"PIP_FAILS": "torch==", "PIP_SAYS": OFFLINE}
    assert OFFLINE not in clone.refuses("index does not answer", "pip config list", "same command again", **failing)
    failing = {"PIP_FAILS": "fairseq-fixed", "PIP_SAYS": "error: no such file: fairseq.cpp"}
    assert failing["PIP_SAYS"] in clone.refuses("whole log: ", ".venv/setup.log", **failing)
    assert clone.setup()[0] == 0


WRONG = {  # missing thing -> environment, words of the message
    "headers": ({"NO_HEADERS": "1"}, ("Python.h", "apt install python3-dev")),
    "venv": ({"NO_VENV": "1"}, ("python3.11 makes no environments", "apt install python3-venv")),
    "compiler": ({}, ("C++ compiler", "apt install g++")),
    "python": ({"PYTHON": "/no where/python3"}, ("PYTHON=/no where/python3: no Python 3.11 or 3.12 found",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("missing", WRONG)
def test_what_is_missing_is_named(clone, missing):
    environment, words = WRONG[missing]
    if missing == "compiler":
        (clone.programs / "c++").unlink()
    clone.refuses(*words, **environment)
    assert clone.steps == [] and (missing == "compiler" or not clone.complete)
    if missing == "compiler":  # a wheel needs no compiler
        clone.program("pip", PIP.replace("*--dry-run*) exit 1", "*--dry-run*) exit 0"))
        assert clone.setup()[0] == 0


@pytest.mark.slow
def test_what_makes_it_anew(made):
    """Another Python, torch build or place makes the environment anew, since programs name their interpreter."""
    made.program("python3.12", PYTHON)
    assert made.setup(PYTHON="python3.11") == (0, "")
    assert "Python of python3.12" in made.setup(PYTHON="python3.12")[1] and made.steps == STEPS
    made.setup(PYTHON="python3.12", TORCH_CUDA="1")
    assert made.steps == STEPS[1:] and "install torch==2.13.0\n" in made.calls.read_text()  # without +cpu
    made.root = made.root.rename(made.root.with_name("moved"))
    status, output = made.setup()
    assert (status, made.steps) == (0, STEPS), output


@pytest.mark.slow
def test_new_versions_come_into_what_is_there(made):
    for line, steps in (("regex==2026.1.1", STEPS[1:]), ("torch==2.14.0", STEPS[1:])):
        with open(made.root / "scripts/constraints.txt", "a") as file:
            file.write(f"{line}\n")
        made.setup()
        assert made.steps[-3:] == steps
    assert (made.root / ".venv/made").read_text().startswith("torch==2.13.0\ntorch==2.14.0")


def test_sourced_it_activates_and_changes_nothing_else(clone):
    command = 'source scripts/setup.sh >&2; echo "$VIRTUAL_ENV $PYTHONPATH"'
    _, output = clone.setup("bash", "-euc", command, PYTHONPATH="/mine")
    assert output.splitlines()[-1] == f"{clone.root}/.venv /mine"
