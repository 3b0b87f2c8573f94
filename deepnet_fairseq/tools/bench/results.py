"""A whole run as one JSON object, whose keys are described in docs/speed.md and stay, and that as Markdown."""

from __future__ import annotations

import gc
import json
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from ...files import whole
from ..environment import environment
from . import kernels
from .benchmarks import matmul_rate, run_benchmarks
from .contender import PARTS, Contender
from .settings import STOCK, Candidate, Settings, Shape
from .turns import FAILED, MEASURED, Cell

FORMAT = 1
PEERS = ("torchscale", "fairscale")


def run(
    shapes: list[Shape], candidates: list[Candidate], settings: Settings, only: tuple[str, ...], out: Path | None
) -> dict:
    """Measures shape after shape and gives the report as one JSON object; `out` is written whole after each shape.

    only: names of measures. UserError for settings that cannot be.
    """
    settings.check()
    where = environment(gpus=int(settings.device == "cuda"))
    where["versions"] |= {name: version(name) for name in PEERS if find_spec(name)}
    Contender(candidates[0], Shape(1, 1, "tiny"), settings).close()  # what is imported at the first use
    measurements = {
        "format": FORMAT,
        "environment": where,
        "threads": torch.get_num_threads(),
        "matmul flops per second": matmul_rate(settings),
        "settings": asdict(settings),
        "candidates": [asdict(candidate) for candidate in candidates],
        "cells": [],
    }
    gc.collect()
    gc.freeze()  # what is there now is no garbage: a search through fairseq and torch takes 0.2 s
    try:
        for shape in shapes:
            measurements["cells"] += compared(list(run_benchmarks(shape, candidates, settings, only)))
            if out:
                with whole(out) as part:
                    part.write_text(json.dumps(measurements, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    finally:
        gc.unfreeze()
    return measurements


def compared(cells: list[Cell]) -> list[dict]:
    """Cells as JSON, each with its summary and what it is relative to stock fairseq's in the same place."""
    stock = {cell.place: cell for cell in cells if cell.candidate == STOCK}
    ratios = [cell.relative_to(stock[cell.place]) if cell.place in stock else {} for cell in cells]
    return [
        asdict(cell) | {"summary": cell.summary(), "to_stock": ratio} for cell, ratio in zip(cells, ratios, strict=True)
    ]


def failures(measurements: dict) -> list[str]:
    """Cells that ended in an error nobody foresaw, each in a line."""
    return [
        f"{cell['candidate']} at {cell['depth']} {cell['width']}, {cell['measure']}: {cell['reason']}"
        for cell in measurements["cells"]
        if cell["state"] == FAILED or cell["reason"].startswith(f"{FAILED}: ")
    ]


class Column(NamedTuple):
    """A quantity; unit: "s", "B", "flops", "n" for a count, or "".

    compare: with its ratio to stock and, but for bytes, its range.
    """

    quantity: str
    head: str
    unit: str = "s"
    compare: bool = False


def _seconds(*names: str, compare: bool = False) -> list[Column]:
    return [Column(name, name, "s", compare) for name in names]


TOKENS = Column("tokens per second", "tokens/s", "", True)
RATE = Column("flops per second", "of matmul", "flops")
PEAKS = [Column("bytes", "peak", "B", True), Column("reserved", "reserved", "B"), Column("peak RSS", "RSS", "B")]
FILE = [Column("load", "load to translate", "s", True), Column("bytes", "size", "B", True)]
TABLES = {
    "build": (
        "Building: seconds until the first step could be made",
        [*_seconds("build", compare=True), *_seconds("model", "trainer", "optimizer")],
    ),
    "train": ("Training: one update of fairseq's Trainer", [TOKENS, *_seconds("step", *PARTS, "rest"), RATE]),
    kernels.NAME: (
        "Training: what one update asks of the GPU",
        [
            *(Column(name, name, "n") for name in ("launches", *PARTS)),
            *(Column(name, name, "n") for name in ("synchronisations", *kernels.COPIES)),
            Column("busy", "kernels' time"),
        ],
    ),
    "memory": ("Training: peak memory", PEAKS),
    "generate": (
        "Translation: fairseq's generator, the same number of steps for all",
        [TOKENS, Column("seconds", "a batch")],
    ),
    "checkpoint": (
        "Checkpoints with the optimiser's state",
        [*_seconds("save", "resume", compare=True), *FILE],
    ),
}


def render(measurements: dict) -> str:
    """Where and how, then the tables of the measures that were made."""
    made = {cell["measure"] for cell in measurements["cells"]}
    tables = [_table(measure, measurements) for measure in TABLES if measure in made]
    predicted = kernels.beside_predictions(measurements)
    return "\n\n".join([_where(measurements), *tables, *([predicted] if predicted else [])])


def _where(measurements: dict) -> str:
    where, settings = measurements["environment"], measurements["settings"]
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    commit = f"commit {where['commit']}{' with changes' * where['modified']}" if where["commit"] else "no commit"
    lines = [
        f"{where['hardware']}, {measurements['threads']} threads, {settings['precision']}, {commit}, "
        f"{where['started']}; {versions}. "
        f"A large product of matrices runs at {measurements['matmul flops per second'] / 1e9:,.0f} Gflop/s.",
        f"Batches of {settings['max_tokens']:,} tokens, {settings['vocabulary']:,} types, dropout "
        f"{settings['dropout']}, {settings['repeats']} repeats, {settings['clock']} time. "
        f"Medians (smallest to largest) [times {STOCK}'s].",
        "",
    ]
    for candidate in measurements["candidates"]:
        why = f" ({candidate['unavailable']})" if candidate["unavailable"] else ""
        lines.append(f"- {candidate['name']}: `{' '.join(candidate['flags'])}`{why}")
    return "\n".join(lines)


def _table(measure: str, measurements: dict) -> str:
    title, columns = TABLES[measure]
    cells = [cell for cell in measurements["cells"] if cell["measure"] == measure]
    columns = [column for column in columns if any(column.quantity in cell["summary"] for cell in cells)]
    conditions = list(cells[0]["condition"])
    heads = ["depth", "width", *conditions, "candidate", *(column.head for column in columns)]
    rows = [heads, ["---"] * len(heads)]
    for cell in cells:
        said = [{"True": "on", "False": "off"}.get(str(value), str(value)) for value in cell["condition"].values()]
        values = [f"{cell['state']}: {cell['reason']}", *[""] * (len(columns) - 1)]
        if cell["state"] == MEASURED:
            values = [value(cell, column, measurements) for column in columns]
        rows.append([cell["depth"], cell["width"], *said, cell["candidate"], *values])
    return f"### {title}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def value(cell: dict, column: Column, measurements: dict) -> str:
    """A quantity's median, and its range and ratio to stock where the column compares."""
    numbers = cell["summary"].get(column.quantity)
    if numbers is None:
        return ""
    if column.unit == "flops":
        return f"{numbers['median'] / measurements['matmul flops per second']:.0%}"
    text = number(numbers["median"], column.unit)
    if column.compare and column.unit != "B" and numbers["n"] > 1:
        text += f" ({number(numbers['min'], column.unit)} to {number(numbers['max'], column.unit)})"
    if column.compare and column.quantity in cell["to_stock"]:
        text += f" [{cell['to_stock'][column.quantity]:.2f}]"
    return text


def number(value: float, unit: str) -> str:
    """Three digits: 1,234 tokens, 12.3 ms, 1.23 s, 45.6 MiB, 7.89 GiB."""
    if unit == "B":
        return f"{_digits(value / 2**30)} GiB" if value >= 2**30 else f"{_digits(value / 2**20)} MiB"
    if unit == "s":
        return f"{_digits(value)} s" if value >= 1 else f"{_digits(value * 1000)} ms"
    return f"{value:,.0f}" if unit == "n" else _digits(value)


def _digits(value: float) -> str:
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{decimals}f}"
