"""From a folder of recorded runs to a report: what its pages, in any format, say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...errors import UserError
from ...methods import METHODS
from ..recorded_run import recorded_below
from .caveats import caveats, is_miniature
from .entry import Entry
from .environment import Environments
from .result import Result, results_of
from .significance import compare
from .table import Table
from .tables import TABLES


@dataclass
class Report:
    """A table with its runs, from which every format is made.

    runs: the folder RUNS. entries: in the order of the results they belong to. environments: letter -> what runs were
    trained with. miniature: is any run one? baseline: the method compared with, "" for none.
    """

    table: Table
    runs: Path
    results: list[Result]
    environments: dict[str, dict]
    warnings: list[str]
    miniature: bool
    baseline: str

    @property
    def entries(self) -> list[Entry]:
        """All runs, those of one result together."""
        return [entry for result in self.results for entry in result.entries]


def find_table(name: str) -> Table:
    """The table that `deepnet report --table` calls so; UserError, with the list of them, if there is none."""
    if name not in TABLES:
        raise UserError(f"--table {name}: no such table; choose one of {', '.join(TABLES)}")
    return TABLES[name]


def collect(runs: Path, table: Table, baseline: str | None = None, over: bool = False) -> Report:
    """Reads RUNS/EXPERIMENT/*; UserError if no run is there, or one is broken.

    baseline: method that the others are compared with at the same depth; "" compares none, None is the table's own.
    over: only of runs that are over; others may be half-written.
    """
    if baseline and baseline not in METHODS:
        raise UserError(f"--baseline {baseline}: no such method; see `deepnet methods`")
    found = [run for folder in table.folders for run in recorded_below(runs / folder) if run.finished or not over]
    if not found:
        raise UserError(f"{runs / table.folders[0]}: holds no runs; record some with {table.script} (OUT={runs})")
    environments = Environments()
    entries = [Entry(table, run, "") for run in found]
    miniature = any(is_miniature(entry) for entry in entries)
    results = results_of(table, entries, miniature)
    for entry in (entry for result in results for entry in result.entries):
        entry.environment = environments.letter(entry.run)
    baseline = table.baseline if baseline is None else baseline
    compare(entries, baseline)
    return Report(table, runs, results, environments.letters, list(caveats(table, entries)), miniature, baseline)
