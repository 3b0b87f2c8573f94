"""Refusals of a user's mistakes: one line that names the flag or the file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError


@contextmanager
def refused(*subjects: object) -> Iterator[pytest.ExceptionInfo]:
    """Check that the block raises a UserError of one line, whose subject contains all of `subjects`."""
    with pytest.raises(UserError) as caught:
        yield caught
    error = caught.value
    assert "\n" not in str(error), error
    for subject in subjects:
        assert str(subject) in error.subject, error


def assert_refused(subject: object, *words: object) -> None:
    """Check that `deepnet WORDS`, run in this process, exits with one line that contains `subject`."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    message = str(ended.value)
    assert message.startswith("deepnet: error: "), message
    assert str(subject) in message, message
    assert "\n" not in message, message


def assert_one_line(done: subprocess.CompletedProcess, *subjects: str) -> None:
    """Check that a program has failed with one line of error that contains all of `subjects`, and no traceback."""
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    lines = [line for line in done.stdout.splitlines() if "error: " in line]
    assert len(lines) == 1, done.stdout
    for subject in subjects:
        assert subject in lines[0], lines[0]
    assert len(lines[0]) < 400
