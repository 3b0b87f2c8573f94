"""Time the parts of a computation, repeat several candidates in turn, and write what was measured as a table."""

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

STOCK = "stock"
TORCHSCALE_ARCH = "deepnet_benchmark_torchscale"
CLOCKS = {"wall": time.perf_counter, "process": time.process_time}


class Clock:
    """Seconds of the calls of watched functions since the last `read`, by name.

    device: "cuda" or "cpu"; kind: a name of CLOCKS, which only a CPU's seconds depend on. On a GPU a part lies between
    two events in the stream. Nothing waits for it, so that the parts overlap with the CPU's work as they do in a
    training.
    """

    def __init__(self, device: str, kind: str = "wall"):
        self.now = CLOCKS[kind]
        self.on_gpu = device == "cuda"
        self.spans: dict[str, list] = defaultdict(list)  # name -> (start, end) of each call, as _mark returns them

    def watched(self, function: Callable, name: str) -> Callable:
        """Return `function` with its calls timed under `name`."""

        def call(*args, **kwargs):
            start = self._mark()
            try:
                return function(*args, **kwargs)
            finally:
                self.spans[name].append((start, self._mark()))

        return call

    def read(self) -> dict[str, float]:
        """Return seconds by name and forget them. This waits for the GPU."""
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
    """Measurements of one candidate under one condition.

    candidate: name of the model or program. condition: what it was measured under, the first cells of its row.
    repeats: number of the repeat -> quantity -> number; facts: numbers that no repeat changes; reason: the error that
    ended or prevented the repeats, "" if none did.
    """

    candidate: str
    condition: tuple[str, ...] = ()
    repeats: dict[int, dict[str, float]] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    reason: str = ""

    def values(self, quantity: str) -> list[float]:
        """Return the number of each repeat."""
        return [numbers[quantity] for numbers in self.repeats.values()]

    def ratio(self, other: Cell, quantity: str) -> float | None:
        """Return the median, over the repeats that both cells have, of this cell's number by the other's."""
        common = self.repeats.keys() & other.repeats.keys()
        ratios = [self.repeats[repeat][quantity] / other.repeats[repeat][quantity] for repeat in common]
        return statistics.median(ratios) if ratios else None


def take_turns(cells: dict[str, Cell], runs: dict[str, Callable[[int], dict | None]], repeats: range) -> None:
    """Call runs[name](repeat) for each repeat and name, in an order that rotates, and fill cells[name].

    cells, runs: by name of the candidate. A run returns numbers by quantity, or None for a repeat that does not count;
    repeats below 0 are the warm-up. A candidate that raises an error is not called again.
    """
    names = list(runs)
    for repeat in repeats:
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            if cells[name].reason:
                continue
            gc.collect()
            gc.disable()  # garbage is collected between the runs and not within one: a search visits all candidates
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
    """A column of the table: a quantity, and its unit, "s", "B" or ""."""

    quantity: str
    unit: str = "s"


def table(heads: list[str], columns: list[Column], cells: list[Cell]) -> str:
    """Return a Markdown table of medians; the first column also shows the range, and the ratio to stock fairseq.

    heads: names of the parts of a cell's condition; columns: the quantities; cells: the rows.
    """
    stock = {cell.condition: cell for cell in cells if cell.candidate == STOCK}
    rows = [[*heads, "candidate", *(column.quantity for column in columns)]]
    rows.append(["---"] * len(rows[0]))
    for cell in cells:
        texts = ["" for _ in columns]
        for number, (quantity, unit) in enumerate(columns):
            if quantity in cell.facts:
                texts[number] = readable(cell.facts[quantity], unit)
            elif cell.repeats:
                values = cell.values(quantity)
                texts[number] = readable(statistics.median(values), unit)
                if number == 0:
                    texts[number] += f" ({readable(min(values), unit)} to {readable(max(values), unit)})"

        stock_cell = stock.get(cell.condition)
        ratio = cell.ratio(stock_cell, columns[0].quantity) if stock_cell else None
        if ratio:
            texts[0] += f" [{ratio:.2f}]"
        if cell.reason:
            texts[-1] += f" failed: {cell.reason}"
        rows.append([*cell.condition, cell.candidate, *texts])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def readable(value: float, unit: str) -> str:
    """Return a number in three digits: 1,234 tokens, 12.3 ms, 1.23 s, 45.6 MiB, 7.89 GiB.

    unit: of `value`, as of a Column: "s", "B" (bytes) or "".
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
    """Return a number with three digits, or all of those before the point."""
    if value < 10:
        return f"{value:,.2f}"
    if value < 100:
        return f"{value:,.1f}"
    return f"{value:,.0f}"
