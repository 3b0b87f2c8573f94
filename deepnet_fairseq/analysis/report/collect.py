"""From a folder of recorded runs to a report: what its pages, in any format, say."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ...errors import UserError
from ...methods import METHODS
from ..recorded_run import recorded_below
from .environment import Environments
from .result import Entry, Result, key_of, results_of
from .significance import compare
from .table import Table
from .tables import TABLES


@dataclass
class Report:
    """entries: in the order of the results they belong to. environments: letter -> what runs were trained with."""

    table: Table
    runs: Path
    results: list[Result]
    environments: dict[str, dict]
    warnings: list[str]
    miniature: bool
    baseline: str

    @property
    def entries(self) -> list[Entry]:
        return [entry for result in self.results for entry in result.entries]


def find_table(name: str) -> Table:
    if name not in TABLES:
        raise UserError(f"--table {name}: no such table; choose one of {', '.join(TABLES)}")
    return TABLES[name]


def collect(runs: Path, table: Table, baseline: str | None = None) -> Report:
    """Reads RUNS/EXPERIMENT/*; UserError if no run is there, or one is broken.

    baseline: method that the others are compared with at the same depth; "" compares none, None is the table's own.
    """
    if baseline and baseline not in METHODS:
        raise UserError(f"--baseline {baseline}: no such method; see `deepnet methods`")
    folder = runs / table.folder
    found = recorded_below(folder)
    if not found:
        raise UserError(f"{folder}: holds no runs; record some with {table.script} (OUT={runs})")
    environments = Environments()
    entries = [Entry(table, run, "") for run in found]
    miniature = any(run.facts.get("smoke") is True for run in found)
    results = results_of(table, entries, miniature)
    for entry in (entry for result in results for entry in result.entries):
        entry.environment = environments.letter(entry.run)
    baseline = table.baseline if baseline is None else baseline
    compare(entries, baseline)
    return Report(table, runs, results, environments.letters, _warnings(table, entries), miniature, baseline)


def _warnings(table: Table, entries: list[Entry]) -> list[str]:
    """What keeps numbers from meaning what they seem to."""
    found = []
    modified = [entry.name for entry in entries if entry.run.environment.get("modified")]
    if modified:
        found.append(f"trained from a modified working tree, so the commit does not tell all: {', '.join(modified)}")
    twins = Counter((*key_of(table, entry.run), entry.run.seed) for entry in entries)
    twice = [entry.name for entry in entries if twins[(*key_of(table, entry.run), entry.run.seed)] > 1]
    if twice:
        found.append(f"same row and same seed, yet counted as several: {', '.join(twice)}")
    kinds = {entry.name: entry.score.get("kind") for entry in entries if entry.score.get("kind")}
    other = [f"{name} ({kind})" for name, kind in kinds.items() if table.metric.kind and kind != table.metric.kind]
    if other:
        found.append(f"the published numbers are {table.metric.kind} BLEU, these are not: {', '.join(other)}")
    mixed = {entry.run.facts.get("smoke") is True for entry in entries}
    if len(mixed) > 1:
        found.append("miniatures and runs in full stand in one table")
    return found
