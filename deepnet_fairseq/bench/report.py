"""A whole run of the bench as one JSON object; its keys are described in docs/benchmarks.md and stay."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from ..atomic_output import whole
from ..environment import environment
from .candidate import STOCK, Candidate
from .cell import FAILED, Cell
from .contender import Contender
from .measure import measure
from .roofline import matmul_rate
from .settings import Settings, Shape

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
    where["versions"] |= dict(_versions())
    Contender(candidates[0], Shape(1, 1, "tiny"), settings).close()  # what is imported at the first use
    report = {
        "format": FORMAT,
        "environment": where,
        "threads": torch.get_num_threads(),
        "matmul flops per second": matmul_rate(settings),
        "settings": asdict(settings),
        "candidates": [asdict(candidate) for candidate in candidates],
        "cells": [],
    }
    with _imports_kept():
        for shape in shapes:
            report["cells"] += compared(list(measure(shape, candidates, settings, only)))
            if out:
                with whole(out) as part:
                    part.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return report


@contextmanager
def _imports_kept() -> Iterator[None]:
    """What is there now is left out when garbage is looked for: a search through fairseq and torch takes 0.2 s."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def compared(cells: list[Cell]) -> list[dict]:
    """Cells as JSON, each with its summary and what it is relative to stock fairseq's in the same place."""
    stock = {cell.place: cell for cell in cells if cell.candidate == STOCK}
    return [
        asdict(cell)
        | {
            "summary": cell.summary(),
            "to_stock": cell.relative_to(stock[cell.place]) if cell.place in stock else {},
        }
        for cell in cells
    ]


def _versions() -> Iterator[tuple[str, str]]:
    for name in PEERS:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def failures(report: dict) -> list[str]:
    """Cells that ended in an error nobody foresaw, each in a line."""
    return [
        f"{cell['candidate']} at {cell['depth']} {cell['width']}, {cell['measure']}: {cell['reason']}"
        for cell in report["cells"]
        if cell["state"] == FAILED
    ]
