"""Tests of map_rows, which calls a function on lines in several processes, in chunks of lines.CHUNK lines."""

from __future__ import annotations

import os
import signal
import time

import pytest

from deepnet_fairseq.data import lines as lines_module
from deepnet_fairseq.data.lines import map_rows

from ..faults.life import lives


@pytest.mark.parametrize("workers", (1, 3))
def test_results_come_in_the_order_of_the_lines(workers):
    lines = [f"line {number}" for number in range(12_345)]  # seven chunks, of which the last is shorter

    results = list(map_rows(str.upper, iter(lines), workers, "test"))

    assert results == [line.upper() for line in lines]


def test_lines_are_read_as_their_results_are_needed():
    """For the first ten results two processes read a few chunks of 2,000 lines, not the whole million."""
    read = 0

    def million_lines():
        nonlocal read
        while read < 1_000_000:
            read += 1
            yield "x"

    results = map_rows(str.upper, million_lines(), workers=2, label="test")
    first_ten = [next(results) for _ in range(10)]
    results.close()

    assert first_ten == ["X"] * 10
    assert read < 50_000


def test_an_error_in_a_worker_process_is_raised_here(monkeypatch):
    monkeypatch.setattr(lines_module, "CHUNK", 1)  # one chunk alone would be worked on in this process

    with pytest.raises(ZeroDivisionError):
        list(map_rows(lambda line: 1 // int(line), ["1", "0"], workers=2, label="test"))


def test_worker_processes_end_with_the_one_that_started_them(tmp_path):
    """A child that maps lines in two worker processes is killed. Each worker has made a file named by its number."""

    def announce_and_sleep(line):
        (tmp_path / str(os.getpid())).touch()
        time.sleep(600)

    child = os.fork()
    if child == 0:
        list(map_rows(announce_and_sleep, ["x"] * 10_000, 2, "test"))
        os._exit(0)
    workers = []
    while len(workers) < 2:
        time.sleep(0.01)
        workers = [int(path.name) for path in tmp_path.iterdir()]

    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    deadline = time.monotonic() + 60
    while any(map(lives, workers)):
        assert time.monotonic() < deadline, f"{workers} still run"
        time.sleep(0.01)
