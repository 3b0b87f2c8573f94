"""scripts/setup.sh and a new user's wrong turns; Python, pip and the compiler are stand-ins that take no time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .support.helpers import ROOT

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
    """A folder with what the set-up reads, in an environment of stand-ins alone."""

    def __init__(self, folder: Path):
        self.root, self.programs = folder / "a clone", folder / "bin"
        self.environment = {"PATH": str(self.programs), "CALLS": str(folder / "calls"), "HOME": str(folder / "no home")}
        (self.root / "scripts").mkdir(parents=True)
        self.programs.mkdir()
        for file in ("setup.py", "scripts/setup.sh", "scripts/constraints.txt"):
            (self.root / file).write_bytes((ROOT / file).read_bytes())
        for name in NEEDED:
            (self.programs / name).symlink_to(shutil.which(name))
        self.program("python3.11", PYTHON)
        self.program("pip", PIP)
        self.program("c++", COMPILER)

    def program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def setup(self, *words: str, **environment: str) -> subprocess.CompletedProcess:
        """Runs `words`, by default the script by bash; the output is that of both streams."""
        return self.start(*words, **environment).finish()

    def start(self, *words: str, **environment: str) -> Started:
        (self.root.parent / "calls").write_text("")
        return Started(words or ("bash", "scripts/setup.sh"), self.root, self.environment | environment)

    @property
    def steps(self) -> list[str]:
        """What pip was to install in the last call, by its place in STEPS."""
        lines = (self.root.parent / "calls").read_text().splitlines()
        return [step for line in lines if "--dry-run" not in line for step in STEPS if step in line]

    @property
    def complete(self) -> bool:
        return (self.root / ".venv/complete").exists()


class Started(subprocess.Popen):
    """A set-up that runs, leader of its process group, to which Ctrl-C is not forbidden."""

    def __init__(self, words, folder: Path, environment: dict[str, str]):
        def heed():
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        super().__init__(
            words, cwd=folder, env=environment, text=True, start_new_session=True, preexec_fn=heed,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def finish(self) -> subprocess.CompletedProcess:
        output, _ = self.communicate(timeout=60)
        return subprocess.CompletedProcess(self.args, self.returncode, output)


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def assert_refused(done: subprocess.CompletedProcess, *words: str) -> None:
    """Failed, and the reason is the last line."""
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 1, done.stdout
    assert last.startswith("setup: ")
    assert all(word in last for word in words), done.stdout


def test_from_nothing_and_again(clone):
    done = clone.setup()
    assert (done.returncode, clone.steps, clone.complete) == (0, STEPS, True), done.stdout
    again = clone.setup()
    assert (again.returncode, again.stdout, clone.steps) == (0, "", [])


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("step", STEPS[::2])
def test_interrupted_it_goes_on(clone, step, kill):
    """In a package half installed: without INSTALLER it does not count. What is there is kept."""
    first = clone.start(PIP_HANGS=step)
    wait_for(clone.root.parent / "calls.hangs")
    os.killpg(first.pid, kill)
    assert first.finish().returncode == -kill
    assert not clone.complete
    done = clone.setup()
    assert (done.returncode, clone.complete) == (0, True), done.stdout
    assert clone.steps == STEPS[step != STEPS[0] :]
    assert "going on" in done.stdout


@pytest.mark.slow
def test_two_at_a_time(clone):
    first = clone.start(PIP_HANGS="fairseq-fixed")
    wait_for(clone.root.parent / "calls.hangs")
    second = subprocess.Popen(
        ["bash", "scripts/setup.sh"], cwd=clone.root, env=clone.environment, stdout=subprocess.PIPE, text=True
    )
    assert second.stdout.readline() == "setup: another set-up is at work here; waiting for it\n"
    os.killpg(first.pid, signal.SIGKILL)
    first.finish()
    assert second.wait(timeout=30) == 0
    assert clone.complete


@pytest.mark.slow
def test_an_index_that_does_not_answer(clone):
    done = clone.setup(PIP_FAILS="torch==", PIP_SAYS=OFFLINE)
    assert_refused(done, "index does not answer", "pip config list", "same command again")
    assert OFFLINE not in done.stdout
    assert clone.setup().returncode == 0


WRONG = {  # what is missing -> environment, words of the answer
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
    assert_refused(clone.setup(**environment), *words)
    assert clone.steps == [] and (missing == "compiler" or not (clone.root / ".venv" / "complete").exists())
    if missing == "compiler":  # none is needed where a wheel is
        clone.program("pip", PIP.replace("*--dry-run*) exit 1", "*--dry-run*) exit 0"))
        assert clone.setup().returncode == 0


@pytest.mark.slow
def test_another_python_makes_it_anew(clone):
    clone.setup()
    clone.program("python3.12", PYTHON)
    assert clone.setup(PYTHON="python3.11").stdout == ""
    assert "Python of python3.12" in clone.setup(PYTHON="python3.12").stdout
    assert clone.steps == STEPS


@pytest.mark.slow
def test_moved(clone):
    """Programs of an environment name their interpreter by its whole path."""
    clone.setup()
    clone.root = clone.root.rename(clone.root.with_name("moved"))
    done = clone.setup()
    assert (done.returncode, clone.steps) == (0, STEPS), done.stdout


@pytest.mark.slow
def test_new_versions_come_into_what_is_there(clone):
    clone.setup()
    with open(clone.root / "scripts/constraints.txt", "a") as file:
        file.write("regex==2026.1.1\n")
    clone.setup()
    assert clone.steps == STEPS[1:]
    with open(clone.root / "scripts/constraints.txt", "a") as file:
        file.write("torch==2.14.0\n")
    clone.setup()
    assert clone.steps[-3:] == STEPS[1:]
    assert (clone.root / ".venv/made").read_text().startswith("torch==2.13.0\ntorch==2.14.0")


def test_sourced_it_activates_and_changes_nothing_else(clone):
    done = clone.setup(
        "bash", "-euc", 'source scripts/setup.sh >&2; echo "$VIRTUAL_ENV $PYTHONPATH"', PYTHONPATH="/mine"
    )
    assert done.stdout.splitlines()[-1] == f"{clone.root}/.venv /mine"
