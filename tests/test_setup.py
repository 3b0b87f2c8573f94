"""scripts/setup.sh and a new user's wrong turns; Python, pip and the compiler are stand-ins that take no time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from .support.cloned import PIP, PYTHON, STEPS, Clone

OFFLINE = "Failed to establish a new connection: [Errno 111] Connection refused"


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


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("step", STEPS)
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


def test_an_index_that_does_not_answer(clone):
    done = clone.setup(PIP_FAILS="torch==", PIP_SAYS=OFFLINE)
    assert_refused(done, "index does not answer", "pip config list", "same command again")
    assert OFFLINE not in done.stdout
    assert clone.setup().returncode == 0


def test_another_failure_shows_the_end_of_its_step(clone):
    done = clone.setup(PIP_FAILS="fairseq-fixed", PIP_SAYS="error: no such file: fairseq.cpp")
    assert_refused(done, "whole log: ", ".venv/setup.log")
    assert "error: no such file: fairseq.cpp" in done.stdout


def test_no_compiler(clone):
    (clone.programs / "c++").unlink()
    assert_refused(clone.setup(), "C++ compiler", "apt install g++")
    assert clone.steps == []


def test_no_headers(clone):
    assert_refused(clone.setup(NO_HEADERS="1"), "Python.h", "apt install python3-dev")


def test_no_compiler_is_needed_where_a_wheel_is(clone):
    (clone.programs / "c++").unlink()
    clone.program("pip", PIP.replace("*--dry-run*) exit 1", "*--dry-run*) exit 0"))
    assert clone.setup().returncode == 0


def test_no_module_venv(clone):
    assert_refused(clone.setup(NO_VENV="1"), "python3.11 makes no environments", "apt install python3-venv")


def test_no_such_python(clone):
    assert_refused(clone.setup(PYTHON="/no where/python3"), "PYTHON=/no where/python3: no Python 3.11 or 3.12 found")
    clone.program("python3.10", "#!/bin/bash\nexit 1\n")
    assert_refused(clone.setup(PYTHON="python3.10"), "PYTHON=python3.10")
    assert not (clone.root / ".venv").exists()


def test_another_python_makes_it_anew(clone):
    clone.setup()
    clone.program("python3.12", PYTHON)
    assert clone.setup(PYTHON="python3.11").stdout == ""
    assert "Python of python3.12" in clone.setup(PYTHON="python3.12").stdout
    assert clone.steps == STEPS


def test_the_cuda_build_of_torch_makes_it_anew(clone):
    clone.setup()
    clone.setup(TORCH_CUDA="1")
    assert clone.steps == STEPS[1:]  # torch without +cpu
    assert "install torch==2.13.0\n" in (clone.root.parent / "calls").read_text()


def test_moved(clone):
    """Programs of an environment name their interpreter by its whole path."""
    clone.setup()
    clone.root = clone.root.rename(clone.root.with_name("moved"))
    done = clone.setup()
    assert (done.returncode, clone.steps) == (0, STEPS), done.stdout


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


@pytest.mark.skipif(os.geteuid() != 0, reason="to be somebody else takes root")
def test_another_user():
    """What is complete serves everybody; what is not is for its owner to mend."""
    nobody = (shutil.which("setpriv"), "--reuid=65534", "--regid=65534", "--clear-groups", "bash", "scripts/setup.sh")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        clone = Clone(Path(folder))
        clone.setup()
        again = clone.setup(*nobody)
        assert (again.returncode, again.stdout) == (0, "")
        (clone.root / ".venv/complete").unlink()
        assert_refused(clone.setup(*nobody), "not yours to write", "let its owner run scripts/setup.sh")


@pytest.mark.parametrize("words", [("sh", "scripts/setup.sh"), ("sh", "../link"), ("bash", "../link")])
def test_by_other_ways(clone, words):
    (clone.root.parent / "link").symlink_to(clone.root / "scripts/setup.sh")
    done = clone.setup(*words, CDPATH="/", PYTHONPATH="/somewhere", PIP_USER="1")
    assert (done.returncode, clone.complete) == (0, True), done.stdout


def test_sourced_it_activates_and_changes_nothing_else(clone):
    done = clone.setup(
        "bash", "-euc", 'source scripts/setup.sh >&2; echo "$VIRTUAL_ENV $PYTHONPATH"', PYTHONPATH="/mine"
    )
    assert done.stdout.splitlines()[-1] == f"{clone.root}/.venv /mine"
