"""Tests of scripts/setup.sh and a new user's mistakes, with fast stand-ins for Python, pip and the compiler.

The script makes .venv in a clone, and installs into it by the calls of pip that are named in STEPS.
"""

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

OFFLINE = "Failed to establish a new connection: [Errno 111] Connection refused"  # pip's, without a network
# Stand-in for python3.11 and python3.12: it is the one that its file is named after. With NO_VENV=1 it lacks venv.
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
# Stand-in for pip, which notes its calls. As for pip itself, a package is installed once its dist-info has INSTALLER.
# PIP_FAILS has words of the call that fails, with the message PIP_SAYS; PIP_HANGS has words of the call that waits.
# With --dry-run the script asks whether there is a wheel of fairseq, and is told that there is none.
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
COMPILER = '#!/bin/bash\nexit "${NO_HEADERS:-0}"\n'  # with NO_HEADERS=1 it does not find Python.h
STEPS = ["torch==2.13.0+cpu", "numpy cython setuptools wheel", "fairseq-fixed", ".[dev]"]  # words of pip's calls


class Clone:
    """Clone of the repository, with the files alone that the set-up reads, in an environment of stand-ins.

    root: the clone's folder, whose name has a blank; programs: folder of all programs that there are; calls: file with
    a line for each call of pip; environment: variables of the script.
    """

    def __init__(self, folder: Path):
        self.root = folder / "a clone"
        self.programs = folder / "bin"
        self.calls = folder / "calls"  # a line for each call of pip
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
        """Write a program."""
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def add_constraint(self, line: str) -> None:
        """Add a line PACKAGE==VERSION to the versions that the set-up installs."""
        with open(self.root / "scripts/constraints.txt", "a") as file:
            file.write(f"{line}\n")

    def start(self, *words: str, **environment: str) -> subprocess.Popen:
        """Start `words`, by default the script, as the leader of a process group that reacts to Ctrl-C.

        environment: more variables. Calls of pip from before are forgotten.
        """
        self.calls.write_text("")
        react_to_ctrl_c = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        return subprocess.Popen(
            words or ("bash", "scripts/setup.sh"), cwd=self.root, env=self.environment | environment, text=True,
            start_new_session=True, preexec_fn=react_to_ctrl_c, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def setup(self, *words: str, **environment: str) -> tuple[int, str]:
        """Run `words`, by default the script; return the status and the output of both streams."""
        process = self.start(*words, **environment)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def start_and_wait_in(self, step: str) -> subprocess.Popen:
        """Start a set-up, and return it when it waits in this step."""
        process = self.start(PIP_HANGS=step)
        until(self.calls.with_suffix(".hangs").exists)
        return process

    def refuses(self, *facts: str, **environment: str) -> str:
        """Check that a set-up fails, and that its last line is a reason with these facts; return its output."""
        status, output = self.setup(**environment)
        assert status == 1, output
        last = output.splitlines()[-1]
        assert last.startswith("setup: "), output
        for fact in facts:
            assert fact in last, output
        return output

    @property
    def steps(self) -> list[str]:
        """Return those of STEPS that pip ran in the last set-up."""
        lines = [line for line in self.calls.read_text().splitlines() if "--dry-run" not in line]
        return [step for line in lines for step in STEPS if step in line]

    @property
    def complete(self) -> bool:
        """Return whether the set-up says that it is complete."""
        return (self.root / ".venv/complete").exists()


@pytest.fixture
def clone(tmp_path):
    """Provide a clone that is not set up."""
    return Clone(tmp_path)


@pytest.fixture
def complete_clone(clone):
    """Provide a clone that is set up."""
    clone.setup()
    return clone


def test_setup_runs_every_step_once(clone):
    status, output = clone.setup()

    assert status == 0, output
    assert clone.steps == STEPS
    assert clone.complete


def test_setup_of_what_is_complete_is_silent_and_runs_no_step(complete_clone):
    status, output = complete_clone.setup()

    assert status == 0
    assert output == ""
    assert complete_clone.steps == []


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("step, repeated", [(STEPS[0], STEPS), (STEPS[2], STEPS[1:])], ids=["torch", "fairseq"])
def test_an_interrupted_setup_goes_on(clone, step, repeated, kill):
    """The first set-up is interrupted in a step, by Ctrl-C or a kill.

    torch is kept once it is installed; the other steps are repeated.
    """
    first = clone.start_and_wait_in(step)
    os.killpg(first.pid, kill)
    assert first.wait(timeout=60) == -kill
    assert not clone.complete

    status, output = clone.setup()

    assert status == 0, output
    assert clone.complete
    assert "going on" in output  # the set-up goes on with what is there, and does not make .venv anew
    assert clone.steps == repeated


@pytest.mark.slow
def test_an_index_that_does_not_answer_is_the_reason_without_the_log(clone):
    """The reason names `pip config list`, the command that shows which index pip asks."""
    failing = {"PIP_FAILS": "torch==", "PIP_SAYS": OFFLINE}

    output = clone.refuses("index", "pip config list", **failing)

    assert OFFLINE not in output


@pytest.mark.slow
def test_a_step_that_fails_shows_the_end_of_its_log(clone):
    failing = {"PIP_FAILS": "fairseq-fixed", "PIP_SAYS": "error: no such file: fairseq.cpp"}

    output = clone.refuses(".venv/setup.log", **failing)

    assert failing["PIP_SAYS"] in output


@pytest.mark.slow
@pytest.mark.parametrize("step, says", [("torch==", OFFLINE), ("fairseq-fixed", "error: no such file")])
def test_setup_succeeds_once_a_step_no_longer_fails(clone, step, says):
    clone.refuses(PIP_FAILS=step, PIP_SAYS=says)

    status, output = clone.setup()

    assert status == 0, output
    assert clone.complete


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment, facts",
    [
        ({"NO_HEADERS": "1"}, ("Python.h", "apt install python3-dev")),
        ({"NO_VENV": "1"}, ("python3.11", "apt install python3-venv")),
        ({"PYTHON": "/no where/python3"}, ("PYTHON=/no where/python3: ", "3.11", "3.12")),
    ],
    ids=["headers", "venv", "python"],
)
def test_what_is_missing_is_named_before_any_step(clone, environment, facts):
    clone.refuses(*facts, **environment)

    assert clone.steps == []
    assert not clone.complete


@pytest.mark.slow
def test_a_missing_compiler_is_named_before_any_step(clone):
    (clone.programs / "c++").unlink()

    clone.refuses("C++", "apt install g++")

    assert clone.steps == []
    assert not clone.complete


@pytest.mark.slow
def test_a_wheel_of_fairseq_needs_no_compiler(clone):
    """pip --dry-run succeeds, which says that there is a wheel."""
    (clone.programs / "c++").unlink()
    clone.program("pip", PIP.replace("*--dry-run*) exit 1", "*--dry-run*) exit 0"))

    status, output = clone.setup()

    assert status == 0, output


@pytest.mark.slow
def test_the_same_python_makes_nothing_anew(complete_clone):
    """The clone was set up by python3.11, which was the only Python at that time."""
    complete_clone.program("python3.12", PYTHON)

    status, output = complete_clone.setup(PYTHON="python3.11")

    assert status == 0
    assert output == ""
    assert complete_clone.steps == []


@pytest.mark.slow
def test_another_python_makes_the_environment_anew(complete_clone):
    complete_clone.program("python3.12", PYTHON)

    _, output = complete_clone.setup(PYTHON="python3.12")

    assert "Python of python3.12" in output
    assert complete_clone.steps == STEPS


@pytest.mark.slow
def test_another_build_of_torch_makes_the_environment_anew(complete_clone):
    """TORCH_CUDA=1 asks for torch with CUDA. The version has no +cpu, so the step is none of STEPS."""
    complete_clone.setup(TORCH_CUDA="1")

    assert "install torch==2.13.0\n" in complete_clone.calls.read_text()
    assert complete_clone.steps == STEPS[1:]


@pytest.mark.slow
def test_a_clone_that_has_moved_makes_the_environment_anew(complete_clone):
    """Programs of an environment name their interpreter by its path."""
    complete_clone.root = complete_clone.root.rename(complete_clone.root.with_name("moved"))

    status, output = complete_clone.setup()

    assert status == 0, output
    assert complete_clone.steps == STEPS


@pytest.mark.slow
def test_a_new_version_of_a_package_comes_into_what_is_there(complete_clone):
    """All steps but that of torch are run, in the same .venv, once scripts/constraints.txt has changed."""
    complete_clone.add_constraint("regex==2026.1.1")
    file_in_venv = complete_clone.root / ".venv/a file"
    file_in_venv.touch()

    complete_clone.setup()

    assert complete_clone.steps == STEPS[1:]
    assert file_in_venv.exists()


@pytest.mark.slow
def test_a_new_version_of_torch_makes_the_environment_anew(complete_clone):
    complete_clone.add_constraint("torch==2.14.0")
    file_in_venv = complete_clone.root / ".venv/a file"
    file_in_venv.touch()

    complete_clone.setup()

    assert complete_clone.steps[-3:] == STEPS[1:]  # all but the step of torch, which names another version
    assert not file_in_venv.exists()


def test_sourcing_it_activates_and_changes_no_variable(clone):
    """`source scripts/setup.sh` sets up and activates .venv; a PYTHONPATH of the user's stays."""
    command = 'source scripts/setup.sh >&2; echo "$VIRTUAL_ENV $PYTHONPATH"'

    _, output = clone.setup("bash", "-euc", command, PYTHONPATH="/mine")

    assert output.splitlines()[-1] == f"{clone.root}/.venv /mine"
