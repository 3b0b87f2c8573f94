"""Tests of work on lines in several processes."""

import os
import signal
import time

import pytest

from deepnet_fairseq.data.lines import map_rows

from ..faults.life import lives


@pytest.mark.parametrize("workers", (1, 3))
def test_results_come_in_the_order_of_the_lines(workers):
    lines = [f"line {number}" for number in range(12_345)]

    results = list(map_rows(str.upper, iter(lines), workers, "test"))

    assert results == [line.upper() for line in lines]


def test_lines_are_read_as_their_results_are_needed():
    read = 0

    def count_lines():
        nonlocal read
        while read < 1_000_000:
            read += 1
            yield "x"

    results = map_rows(str.upper, count_lines(), 2, "test")
    first_ten = [next(results) for _ in range(10)]

    assert first_ten == ["X"] * 10
    assert read < 50_000
    results.close()


def test_an_error_in_a_process_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        list(map_rows(lambda line: 1 // int(line), ["1", "0"], 2, "test"))


def test_processes_end_with_the_one_that_started_them(tmp_path):
    def announce_and_sleep(line):
        (tmp_path / str(os.getpid())).touch()
        time.sleep(60)

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

    deadline = time.monotonic() + 10
    while any(map(lives, workers)):
        assert time.monotonic() < deadline, f"{workers} still run"
        time.sleep(0.01)
