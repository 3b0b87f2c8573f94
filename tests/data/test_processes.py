"""Tests of work on lines in several processes."""

import os
import time

import pytest

from deepnet_fairseq.data.lines import map_rows

from ..faults.life import lives


def test_lines_in_processes_come_in_order():
    lines = [f"line {number}" for number in range(12_345)]
    results = [list(map_rows(str.upper, iter(lines), workers, "test")) for workers in (1, 3)]
    assert results[0] == results[1] == [line.upper() for line in lines]


def test_lines_are_read_as_they_are_needed():
    read = 0

    def lines():
        nonlocal read
        while read < 1_000_000:
            read += 1
            yield "x"

    results = map_rows(str.upper, lines(), 2, "test")
    assert [next(results) for _ in range(10)] == ["X"] * 10
    assert read < 50_000
    results.close()


def test_a_mistake_in_a_process_is_told():
    with pytest.raises(ZeroDivisionError):
        list(map_rows(lambda line: 1 // int(line), ["1", "0"], 2, "test"))


def test_processes_end_with_the_one_that_started_them(tmp_path):
    def rest(line):
        (tmp_path / str(os.getpid())).touch()
        time.sleep(60)

    if not (child := os.fork()):
        list(map_rows(rest, ["x"] * 10_000, 2, "test"))
        os._exit(0)
    workers = []
    while len(workers := [int(path.name) for path in tmp_path.iterdir()]) < 2:
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    deadline = time.monotonic() + 10
    while any(map(lives, workers)):
        assert time.monotonic() < deadline, f"{workers} still run"
        time.sleep(0.01)
