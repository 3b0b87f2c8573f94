"""One place of the table with its repeats; repeats of several candidates in turn, each bounded in time."""

from __future__ import annotations

import contextlib
import gc
import signal
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ...errors import UserError, out_of_memory

MEASURED = "measured"
NO_MEMORY = "out of memory"
NO_TIME = "out of time"
DIVERGED = "diverged"  # numbers that are not finite
FAILED = "failed"
UNAVAILABLE = "cannot run"


@dataclass
class Cell:
    """What was measured of a candidate at one place; to JSON by dataclasses.asdict.

    values: quantity -> a number for each of `repeats`; condition: beam and so on; facts: what no repeat changes; state:
    one of the module's; reason: why there are no more repeats, also where those that were made stand ("measured").
    """

    measure: str
    candidate: str
    depth: str
    width: str
    condition: dict = field(default_factory=dict)
    state: str = MEASURED
    reason: str = ""
    repeats: list[int] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)
    facts: dict = field(default_factory=dict)

    @property
    def place(self) -> tuple:
        """What those cells have in common that are compared."""
        return self.measure, self.depth, self.width, tuple(self.condition.items())

    def add(self, repeat: int, numbers: dict[str, float]) -> None:
        """The numbers of a repeat, by quantity; each repeat has the same quantities."""
        self.repeats.append(repeat)
        for quantity, number in numbers.items():
            self.values.setdefault(quantity, []).append(number)

    def end(self, state: str, reason: str) -> None:
        """No further repeat; what was measured before stands, and the reason says how it ended."""
        self.reason = f"{state}: {reason}" if self.repeats else reason
        if not self.repeats:
            self.state = state

    def summary(self) -> dict[str, dict[str, float]]:
        """Quantity -> its number of repeats, median, smallest and largest."""
        return {
            quantity: {"n": len(row), "median": statistics.median(row), "min": min(row), "max": max(row)}
            for quantity, row in self.values.items()
        }

    def relative_to(self, other: Cell) -> dict[str, float]:
        """Quantity -> median over the repeats both have of this cell's number by the other's."""
        common = sorted(set(self.repeats) & set(other.repeats))
        found = {}
        for quantity in self.values.keys() & other.values.keys():
            mine, others = (dict(zip(cell.repeats, cell.values[quantity], strict=True)) for cell in (self, other))
            ratios = [mine[repeat] / others[repeat] for repeat in common if others[repeat]]
            if ratios:
                found[quantity] = statistics.median(ratios)
        return found


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
def note_ending(cell: Cell, seconds: float) -> Iterator[None]:
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
        first = repeat % max(len(names), 1)
        for name in names[first:] + names[:first]:
            cell, left = cells[name], seconds - spent[name]
            if cell.reason or left <= 0:
                continue
            gc.collect()
            gc.disable()  # garbage is collected before, not in somebody's step: that would look through all candidates
            start = time.monotonic()
            try:
                with note_ending(cell, left):
                    numbers = runs[name](repeat)
                    if numbers is not None:
                        cell.add(repeat, numbers)
            finally:
                gc.enable()
            spent[name] += time.monotonic() - start
