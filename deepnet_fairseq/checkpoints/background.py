"""--write-checkpoints-asynchronously: files are written while the training goes on, one save at a time, in order.

fairseq's flag of that name needs the package iopath, and then writes no copies: checkpoint_last.pt would never be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Job = Callable[[], object]
_held: list[Job] | None = None
_thread: threading.Thread | None = None


def do(job: Job) -> None:
    """Does `job` now, or, while a save is being put together for the background, when its turn comes."""
    if _held is None or threading.current_thread() is not threading.main_thread():
        job()
    else:
        _held.append(job)


def holding() -> bool:
    """Is a save being put together for the background? Then what it holds must not change with the training."""
    return _held is not None


@contextmanager
def held() -> Iterator[list[Job]]:
    """Jobs given to `do` meanwhile are not done but come in the list."""
    global _held
    _held = jobs = []
    try:
        yield jobs
    finally:
        _held = None


def start(jobs: list[Job], failed: Callable[[Exception], None]) -> None:
    """Does the jobs in a thread of their own, until one raises, which `failed` is told; the ones before are over."""
    global _thread
    wait()
    _thread = threading.Thread(target=_work, args=(jobs, failed), name="checkpoint")
    _thread.start()


def wait() -> None:
    """Returns when everything is written."""
    global _thread
    if _thread is not None:
        _thread.join()
        _thread = None


def _work(jobs: list[Job], failed: Callable[[Exception], None]) -> None:
    try:
        while jobs:
            jobs.pop(0)()  # and lets go of the state it held
    except Exception as error:
        failed(error)
