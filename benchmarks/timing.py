"""Time the parts of a computation, repeat several candidates in turn, and write what was measured as a table.

A candidate is a model or program, by its name; a condition is what it is measured under, such as depth and width. A
repeat is one measurement; it gives numbers by quantity, such as {"seconds": 0.5}.
"""

from __future__ import annotations

import gc
import statistics
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

STOCK = "stock"  # name of the candidate that others are compared with: fairseq's own model
TORCHSCALE_ARCH = "deepnet_benchmark_torchscale"  # --arch of torchscale's model
CLOCKS = {"wall": time.perf_counter, "process": time.process_time}


class Clock:
    """Adds up the seconds that calls of watched functions take, by name.

    On a GPU a call lies between two events in the stream, by the GPU's clock. Nothing waits for them before `read`, so
    that the calls overlap with the CPU's work as they do in a training.
    """

    def __init__(self, device: str, kind: str = "wall"):
        """Begin without calls. device: "cuda" or "cpu", where functions compute; kind: a key of CLOCKS, for a CPU."""
        self.now = CLOCKS[kind]
        self.on_gpu = device == "cuda"
        self.spans: dict[str, list] = defaultdict(list)  # {name: (start, end) of each call, as _mark returns them}

    def watched(self, function: Callable, name: str) -> Callable:
        """Return a function that calls `function` and times that under `name`; several may share a name."""

        def call(*args, **kwargs):
            """Call `function`; arguments and result are its own."""
            start = self._mark()
            try:
                return function(*args, **kwargs)
            finally:
                self.spans[name].append((start, self._mark()))

        return call

    def read(self) -> dict[str, float]:
        """Return {name: seconds of all calls since the last `read`}. This waits for the GPU."""
        if self.on_gpu:
            torch.cuda.synchronize()
        seconds = {}
        for name, spans in self.spans.items():
            seconds[name] = sum(self._between(start, end) for start, end in spans)
        self.spans.clear()
        return seconds

    def _mark(self):
        """Return the present moment: seconds, or on a GPU an event in the stream."""
        if not self.on_gpu:
            return self.now()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, start, end) -> float:
        """Return the seconds between two moments of _mark."""
        if self.on_gpu:
            return start.elapsed_time(end) / 1000
        return end - start


@dataclass
class Cell:
    """What was measured of one candidate under one condition: a row of the table."""

    candidate: str
    condition: tuple[str, ...] = ()  # the first texts of the row
    repeats: dict[int, dict[str, float]] = field(default_factory=dict)  # {number of the repeat: {quantity: number}}
    facts: dict[str, float] = field(default_factory=dict)  # {quantity: number that is the same in every repeat}
    reason: str = ""  # the error that ended or prevented the repeats, "" if there was none

    def values(self, quantity: str) -> list[float]:
        """Return the number of a quantity in each repeat."""
        return [numbers[quantity] for numbers in self.repeats.values()]

    def ratio(self, other: Cell, quantity: str) -> float | None:
        """Return the median over the repeats of this cell's number divided by the other's; None if they share none."""
        common = self.repeats.keys() & other.repeats.keys()
        ratios = [self.repeats[repeat][quantity] / other.repeats[repeat][quantity] for repeat in common]
        return statistics.median(ratios) if ratios else None


def take_turns(cells: dict[str, Cell], runs: dict[str, Callable[[int], dict | None]], repeats: range) -> None:
    """Measure the candidates in turn, one repeat of each after the other, and fill their cells.

    cells: {candidate: its cell}; runs: {candidate: function that makes a repeat, given its number}. The function
    returns numbers by quantity, or None for a repeat that does not count. repeats: their numbers; those below 0 are the
    warm-up and do not count either. Each repeat begins with the next candidate. A candidate that raises an error, or
    whose cell has a reason from the start, is not called again.
    """
    names = list(runs)
    for repeat in repeats:
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            if cells[name].reason:
                continue
            gc.collect()
            gc.disable()  # a search for garbage, which visits the objects of all candidates, shall not fall into a run
            try:
                numbers = runs[name](repeat)
                if numbers is not None and repeat >= 0:
                    cells[name].repeats[repeat] = numbers
            except Exception as error:
                traceback.print_exc()
                message = str(error).strip() or "no message"
                cells[name].reason = f"{type(error).__name__}: {message.splitlines()[0]}"
            finally:
                gc.enable()


class Column(NamedTuple):
    """A column of the table."""

    quantity: str  # its name, which is also the head
    unit: str = "s"  # "s" (seconds), "B" (bytes), or "" for a number without


def table(heads: list[str], columns: list[Column], cells: list[Cell]) -> str:
    """Return a table in Markdown with the medians over the repeats, a cell a row.

    The first quantity also shows the range, and in brackets the ratio to stock fairseq under the same condition, if
    that was measured. The last one also shows the error of a cell. heads: of the texts of a cell's condition; columns:
    the quantities.
    """
    stock_by_condition = {cell.condition: cell for cell in cells if cell.candidate == STOCK}
    rows = [[*heads, "candidate", *(column.quantity for column in columns)]]
    rows.append(["---"] * len(rows[0]))
    for cell in cells:
        texts = ["" for _ in columns]  # "" stays where nothing was measured
        for number, (quantity, unit) in enumerate(columns):
            if quantity in cell.facts:
                texts[number] = readable(cell.facts[quantity], unit)
            elif cell.repeats:
                values = cell.values(quantity)
                texts[number] = readable(statistics.median(values), unit)
                if number == 0:
                    texts[number] += f" ({readable(min(values), unit)} to {readable(max(values), unit)})"

        stock_cell = stock_by_condition.get(cell.condition)
        ratio = cell.ratio(stock_cell, columns[0].quantity) if stock_cell else None
        if ratio:
            texts[0] += f" [{ratio:.2f}]"
        if cell.reason:
            texts[-1] += f" failed: {cell.reason}"
        rows.append([*cell.condition, cell.candidate, *texts])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def readable(value: float, unit: str) -> str:
    """Return a number in three digits or all of those before the point: 1,234, 12.3 ms, 1.23 s, 45.6 MiB, 7.89 GiB.

    unit: of `value`, as in a Column.
    """
    if unit == "B" and value >= 2**30:
        return f"{_digits(value / 2**30)} GiB"
    if unit == "B":
        return f"{_digits(value / 2**20)} MiB"
    if unit == "s" and value >= 1:
        return f"{_digits(value)} s"
    if unit == "s":
        return f"{_digits(value * 1000)} ms"
    return _digits(value)


def _digits(value: float) -> str:
    """Return a number with three digits, or with all digits before the point if there are more: 1.23, 12.3, 1,234."""
    if value < 10:
        return f"{value:,.2f}"
    if value < 100:
        return f"{value:,.1f}"
    return f"{value:,.0f}"
