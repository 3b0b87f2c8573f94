"""A whole run of the bench as one JSON object; keys are described in docs/benchmarks.md and stay."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from ..environment import environment
from ..whole_file import whole
from .candidate import Candidate
from .measure import measure
from .settings import Settings, Shape

FORMAT = 1


def run(
    shapes: list[Shape], candidates: list[Candidate], settings: Settings, only: tuple[str, ...], out: Path | None
) -> dict:
    """Measures shape after shape; `out` is written whole after each."""
    from . import task  # noqa: F401  registers it

    report = {
        "format": FORMAT,
        "environment": environment(gpus=int(settings.device == "cuda")),
        "threads": torch.get_num_threads(),
        "settings": asdict(settings),
        "candidates": [asdict(candidate) for candidate in candidates],
        "cells": [],
    }
    for shape in shapes:
        print(f"bench: {shape.depth} {shape.width}", file=sys.stderr, flush=True)
        for cell in measure(shape, candidates, settings, only):
            report["cells"].append(asdict(cell) | {"summary": cell.summary()})
        if out:
            with whole(out) as part:
                part.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return report
