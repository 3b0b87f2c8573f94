"""Refusals of a user's mistakes: one line that names the flag or the file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError

MOST_CHARACTERS = 400  # of a program's line of error


@contextmanager
def refused(*subjects: object) -> Iterator[pytest.ExceptionInfo]:
    """Check that the block raises a UserError of one line, whose subject contains all of `subjects`."""
    with pytest.raises(UserError) as caught:
        yield caught
    error = caught.value
    assert "\n" not in str(error), error
    for subject in subjects:
        assert str(subject) in error.subject, error


def refusal(*words: object) -> str:
    """Run `deepnet WORDS` in this process and check that it exits with one line of error; return the line."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    line = str(ended.value)
    assert line.startswith("deepnet: error: "), line
    assert "\n" not in line, line
    return line


def assert_refused(subject: object, *words: object) -> None:
    """Check that `deepnet WORDS`, run in this process, exits with one line of error that contains `subject`."""
    line = refusal(*words)
    assert str(subject) in line, line


def assert_one_line(done: subprocess.CompletedProcess, *subjects: str) -> None:
    """Check that a program has failed with one short line of error that contains all of `subjects`, and no traceback.

    done: as helpers.run returns it, with the program's standard error in its stdout
    """
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    lines = [line for line in done.stdout.splitlines() if "error: " in line]
    assert len(lines) == 1, done.stdout
    for subject in subjects:
        assert subject in lines[0], lines[0]
    assert len(lines[0]) < MOST_CHARACTERS
