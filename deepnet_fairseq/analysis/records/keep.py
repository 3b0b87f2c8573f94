"""From folders of finished runs to their records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ...atomic_output import whole
from ...errors import UserError
from ...json_text import read_object
from ...probes.record import FILE as PROBES
from ..recorded_run import RecordedRun
from ..report.collect import collect
from ..report.paired import write_paired
from ..report.tables import TABLES
from .places import relative, relative_values
from .short_log import short_log

OBJECTS = ("run.json", "environment.json", "score.json")
TEXTS = ("command", "diverged", "trained")


def keep(runs: Path, dest: Path) -> tuple[list[Path], list[Path]]:
    """Records every finished run below `runs` at the same place below `dest`; what is there of it already is replaced.

    Returns the places of the runs recorded and of those left out, which are not over. UserError if no run is over, if
    one is broken or says nothing of its environment, or if `dest` lies in `runs`.
    """
    if not runs.is_dir():
        raise UserError(f"{runs}: no such folder; name one that holds recorded runs")
    if dest.resolve().is_relative_to(runs.resolve()):
        raise UserError(f"{dest}: lies in {runs}; name another place for the records")
    found = sorted(path.parent.relative_to(runs) for path in runs.rglob("run.json"))
    over = [place for place in found if RecordedRun.read(runs / place).finished]
    if not over:
        raise UserError(f"{runs}: holds no finished runs; a finished one has run.json and a file `trained`")
    for place in over:
        if not (runs / place / "environment.json").is_file():
            raise UserError(f"{runs / place}: has no environment.json; write it with `deepnet environment`")
    tests = _paired_tests(runs)
    for place in over:
        _keep(runs, place, dest / place, tests.get((runs / place).resolve(), {}))
    return over, [place for place in found if place not in over]


def _keep(runs: Path, place: Path, dest: Path, tests: dict[Path, float]) -> None:
    """One run; its folder appears whole."""
    source = runs / place
    dest.parent.mkdir(parents=True, exist_ok=True)
    with whole(dest) as part:
        part.mkdir()
        for name in filter(lambda name: (source / name).is_file(), OBJECTS):
            content = relative_values(read_object(source / name, "record the run again"), runs)
            (part / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        for name in filter(lambda name: (source / name).is_file(), TEXTS):
            (part / name).write_text(relative(_text(source / name), runs), encoding="utf-8")
        if (source / "train.log").is_file():
            (part / "train.log").write_text(relative(short_log(_text(source / "train.log")), runs), encoding="utf-8")
        if (source / PROBES).is_file():
            shutil.copyfile(source / PROBES, part / PROBES)
        if tests:
            write_paired(part, tests)
        if dest.is_dir():
            shutil.rmtree(dest)


def _paired_tests(runs: Path) -> dict[Path, dict[Path, float]]:
    """Folder of a run -> folder of a baseline's run -> p, of every table whose runs are there."""
    found: dict[Path, dict[Path, float]] = {}
    for table in TABLES.values():
        if not any(next((runs / folder).glob("*/trained"), None) for folder in table.folders):
            continue
        entries = collect(runs, table, over=True).entries
        folders = {entry.name: entry.run.folder for entry in entries}
        for entry in entries:
            if entry.p is not None and entry.baseline is not None:
                found.setdefault(entry.run.folder.resolve(), {})[folders[entry.baseline]] = entry.p
    return found


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
