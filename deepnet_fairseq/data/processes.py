"""Work on lines in several processes, none of which outlives this one."""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice

from tqdm import tqdm

CHUNK = 2000  # lines a process takes at a time
PR_SET_PDEATHSIG = 1  # linux/prctl.h

_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    """For a child process: it is killed when its parent ends, in whatever way."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def map_lines(make: Callable, lines: Iterable[str], workers: int, label: str) -> Iterator[str]:
    """function(line) of every line, in order, with a progress bar on a terminal.

    make() gives the function, once in each process: it may be slow. A few chunks of lines are in memory at a time.
    """
    with tqdm(desc=label, unit=" lines", unit_scale=True, disable=None) as bar:
        for chunk in _in_processes(make, _chunks(lines), workers) if workers > 1 else _here(make, _chunks(lines)):
            yield from chunk
            bar.update(len(chunk))


def _chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    lines = iter(lines)
    while chunk := list(islice(lines, CHUNK)):
        yield chunk


def _here(make: Callable, chunks: Iterator[list[str]]) -> Iterator[list[str]]:
    function = make()
    for chunk in chunks:
        yield [function(line) for line in chunk]


def _in_processes(make: Callable, chunks: Iterator[list[str]], workers: int) -> Iterator[list[str]]:
    fork = multiprocessing.get_context("fork")  # a spawned process would import torch and fairseq once more
    with ProcessPoolExecutor(workers, fork, _begin, (make,)) as pool:
        waiting = deque()
        for chunk in chunks:
            waiting.append(pool.submit(_work, chunk))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


_function: Callable[[str], str]  # of a worker


def _begin(make: Callable) -> None:
    global _function
    die_with_parent()
    _function = make()


def _work(chunk: list[str]) -> list[str]:
    return [_function(line) for line in chunk]
