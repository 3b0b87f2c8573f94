"""What the layers of trained models do: loss without a layer, angular distance, logit lens."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from ...errors import UserError
from ...files import WRONG_VALUES
from ..runs import RecordedRun
from ..style import style_of
from .sheet import Sheet, number, page

PANELS = {  # key of the record's lists -> y axis
    "skip": "added loss without layer l\n(bits per token; marked: used)",
    "distance": "angular distance of what\nlayer l reads and gives",
    "lens": "loss read off behind layer l\n(bits per token)",
}
BITS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30, 50, 100, 200, 500)  # that the last has a line at
SMALLEST = 0.001  # bits; the first panel is linear below, so that a cost may be negative
POINTS = 20  # that have a mark where it says nothing
MEND = "record it with `deepnet layer-use --json`"
SOURCE = "deepnet layer-use; the words are defined in docs/probes.md"


def layer_use(runs: list[RecordedRun], path: Path) -> str:
    """A row a quantity, a column a depth and stack, a line a run in its method's colour.

    runs: records of `deepnet layer-use --json`; UserError, naming the record, for another.
    """
    found = _parts(runs)
    places = dict.fromkeys((run.depth, stack) for run, part in found.items() for stack in part["stacks"])
    sheet = Sheet(len(places), len(PANELS), "", size=(2.9, 2.3))
    for row, (key, y) in enumerate(PANELS.items()):
        panels = range(row * len(places), (row + 1) * len(places))
        for panel, (depth, stack) in zip(panels, places, strict=True):
            for run, part in found.items():
                if run.depth == depth and stack in part["stacks"]:
                    _draw(sheet, panel, run, key, part["stacks"][stack])
            title = f"{depth}, {stack}" if not row else ""
            sheet.label(panel, title, "layer l" if row == len(PANELS) - 1 else "", y if panel == panels[0] else "")
        _scale([sheet.panels[panel] for panel in panels], key)
    sheet.save(path)
    return page("What each layer does", [rows_by_layers(runs)], (), SOURCE)


def _parts(runs: list[RecordedRun]) -> dict[RecordedRun, dict[str, Any]]:
    """By depth, then by method."""
    return {run: _part(run) for run in sorted(runs, key=lambda run: (run.total_layers, run.method))}


def _part(run: RecordedRun) -> dict[str, Any]:
    """What layer-use found; UserError if it is not there, or not as it writes it."""
    part = run.parts.get("layer_use", {})
    try:
        for stack in part["stacks"].values():
            layers = len(stack["skip"])
            sizes = {"skip": 0, "used": 0, "distance": 0, "swap": -1, "ordered": -1, "lens": 1}
            if any(len(stack[key]) != layers + more for key, more in sizes.items()) or not layers:
                raise ValueError
            float(sum(stack[key] for key in ("half", "arrival")) + sum(sum(stack[key]) for key in sizes))
        float(part["loss"])
    except WRONG_VALUES as error:
        raise UserError(f"{run.where('layer_use')}: is broken or not there; {MEND}") from error
    return part


def _draw(sheet: Sheet, panel: int, run: RecordedRun, key: str, numbers: dict[str, Any]) -> None:
    values = numbers[key]
    marked: Any = max(1, len(values) // POINTS)
    if key == "skip":
        marked = [place for place, used in enumerate(numbers["used"]) if used]
    layers = range(int(key != "lens"), len(numbers["skip"]) + 1)
    sheet.curve(panel, layers, values, style_of(run.method), markevery=marked, markersize=3, linewidth=1.0)


def _scale(row: list[Axes], key: str) -> None:
    """One scale for panels side by side: from 0 up by decades, decades, bits."""
    for axes in row:
        if key == "skip":
            axes.set_yscale("symlog", linthresh=SMALLEST)
        else:
            axes.set_yscale("log")
        if key == "lens":
            axes.yaxis.set_major_locator(FixedLocator(BITS))
            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_locator(NullLocator())
        axes.margins(y=0.08)
        axes.sharey(row[0]) if axes is not row[0] else None
        axes.tick_params(labelleft=axes is row[0])


def rows_by_layers(runs: list[RecordedRun]) -> list[list[str]]:
    """A header, and a row a run and stack; UserError as for the picture."""
    found = _parts(runs)
    rows = [["model", "method", "loss", "stack", "used", "half of the cost in", "median cost", "order matters",
             "mean distance", "lens there from"]]  # fmt: skip
    for run, part in found.items():
        for name, stack in part["stacks"].items():
            skip, distance = stack["skip"], stack["distance"]
            half = str(stack["half"]) if sum(skip) > 0 else "-"  # of a cost
            rows.append([
                run.depth, style_of(run.method).label, number(part["loss"], 4), name, str(sum(stack["used"])),
                half, number(median(skip)) if median(skip) > 0 else "0", str(sum(stack["ordered"])),
                number(sum(distance) / len(distance)), str(stack["arrival"]),
            ])  # fmt: skip
    return rows
