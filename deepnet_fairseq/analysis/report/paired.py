"""The paired tests of a run, kept beside it: a report of records has neither translations nor references to test."""

from __future__ import annotations

import json
from pathlib import Path

from ...atomic_output import whole
from ...errors import UserError
from ...json_text import read_object

FILE = "paired.json"


def read_paired(run: Path, baseline: Path) -> float | None:
    """p of the test of `run` against `baseline`, both folders of runs; None if it was not recorded."""
    path = run / FILE
    value = read_object(path, "record the run again").get(_name(baseline)) if path.is_file() else None
    if value is not None and not isinstance(value, (int, float)):
        raise UserError(f"{path}: p against {_name(baseline)} is {value!r}, no number; record the run again")
    return value


def write_paired(run: Path, against: dict[Path, float]) -> None:
    """against: folder of each baseline's run -> p."""
    with whole(run / FILE) as part:
        part.write_text(json.dumps({_name(path): p for path, p in sorted(against.items())}) + "\n", encoding="utf-8")


def _name(run: Path) -> str:
    """With the experiment's: a table may read several."""
    return f"{run.parent.name}/{run.name}"
