"""Repeats of several candidates in turn, each bounded in time, so that what else runs meets all alike."""

from __future__ import annotations

import contextlib
import gc
import signal
import time
import traceback
from collections.abc import Callable, Iterator

import torch

from ..errors import UserError
from .cell import DIVERGED, FAILED, NO_MEMORY, NO_TIME, Cell


class OutOfTime(BaseException):
    """Not an Exception: fairseq's Trainer catches those and writes a checkpoint."""


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """OutOfTime in this block once `seconds` are over, as soon as Python runs again."""

    def ring(*_):
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def recorded(cell: Cell, seconds: float) -> Iterator[None]:
    """What ends the block early is written into the cell; a mistake of the user goes on."""
    try:
        with deadline(seconds):
            yield
    except OutOfTime:
        cell.end(NO_TIME, f"more than {seconds:.0f} s")
    except UserError:
        raise
    except FloatingPointError as error:
        cell.end(DIVERGED, first_line(error))
    except Exception as error:
        if out_of_memory(error):
            cell.end(NO_MEMORY, first_line(error))
        else:
            traceback.print_exc()
            cell.end(FAILED, f"{type(error).__name__}: {first_line(error)}")


def out_of_memory(error: BaseException) -> bool:
    """On a GPU, or on a CPU in any of the ways that torch says so."""
    said = str(error).lower()
    words = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(word in said for word in words)


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip() or "no message").splitlines()[0]


def interleave(
    cells: dict[str, Cell], runs: dict[str, Callable[[int], dict | None]], repeats: range, seconds: float
) -> None:
    """runs[name](repeat) is called for each repeat and name, in an order that rotates, and fills cells[name].

    A run gives numbers by quantity, or None for a repeat that does not count. seconds: of all repeats of a candidate;
    one that fails, or has used them up, is not called again.
    """
    names, spent = list(runs), dict.fromkeys(runs, 0.0)
    for repeat in repeats:
        for name in rotated(names, repeat):
            cell, left = cells[name], seconds - spent[name]
            if cell.reason or left <= 0:
                continue
            with _garbage_kept():
                start = time.monotonic()
                with recorded(cell, left):
                    numbers = runs[name](repeat)
                    if numbers is not None:
                        cell.add(repeat, numbers)
                spent[name] += time.monotonic() - start


@contextlib.contextmanager
def _garbage_kept() -> Iterator[None]:
    """Python collects garbage before, not in the middle of somebody's step: it would look through all candidates."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def rotated(names: list, by: int) -> list:
    """The names in their order, beginning with number `by`, which wraps around."""
    by %= max(len(names), 1)
    return names[by:] + names[:by]
