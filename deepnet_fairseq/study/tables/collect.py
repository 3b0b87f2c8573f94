"""From a folder of recorded runs to a report: what its pages, in any format, say."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

from ...core.methods import METHODS
from ...errors import UserError
from ..runs import MEND, recorded_below
from .definitions import Table
from .result import Entry, Result, State, environment_of, results_of


@dataclass
class TableReport:
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


def collect(runs: Path, table: Table, baseline: str | None = None, over: bool = False) -> TableReport:
    """Reads RUNS/EXPERIMENT/*; UserError if no run is there, or one is broken. A miniature has no rows without runs.

    baseline: method that the others are compared with at the same depth; "" compares none, None is the table's own.
    over: see recorded_below.
    """
    if baseline and baseline not in METHODS:
        raise UserError(f"--baseline {baseline}: no such method; see `deepnet methods`")
    found_runs = [run for folder in table.folders for run in recorded_below(runs / folder, over)]
    if not found_runs:
        raise UserError(f"{runs / table.folders[0]}: holds no runs; record some with {table.script} (OUT={runs})")
    entries = [Entry(table, run) for run in found_runs]
    baseline = table.baseline if baseline is None else baseline
    _compare(entries, baseline)
    miniature, warnings = any(entry.miniature for entry in entries), list(_caveats(table, entries))
    results = [result for result in results_of(table, entries) if result.entries or not miniature]
    report = TableReport(table, runs, results, {}, warnings, miniature, baseline)
    for entry in report.entries:
        found = environment_of(entry.run)
        again, rank = divmod(len(report.environments), len(ascii_lowercase))
        letters = (letter for letter, known in report.environments.items() if known == found)
        entry.environment = next(letters, ascii_lowercase[rank] * (again + 1))  # a to z, then aa, bb and so on
        report.environments[entry.environment] = found
    return report


def _caveats(table: Table, entries: list[Entry]) -> Iterator[str]:
    """What keeps the numbers from meaning what they seem to, a line each, with the runs by name."""
    modified = [entry.name for entry in entries if entry.run.environment.get("modified")]
    if modified:
        yield f"trained from a modified working tree, so the commit does not tell all: {', '.join(modified)}"
    twins: dict[tuple, list[str]] = {}
    for entry in entries:
        twins.setdefault((*entry.key, entry.run.facts.get(table.tuned), entry.run.seed), []).append(entry.name)
    for names in twins.values():
        if len(names) > 1:
            yield f"same row and same seed, yet counted as several: {', '.join(names)}"
    kind = table.metric.kind
    others = [f"{entry.name} ({entry.score['kind']})" for entry in entries if entry.score.get("kind", kind) != kind]
    if kind and others:
        yield f"the published numbers are {kind} BLEU, these are not: {', '.join(others)}"
    for key, text in (
        ("corpus", "trained and tested on the corpus {}, the paper's is {}"),
        ("batch_tokens", "an update has {} tokens, the paper's {}"),
    ):
        different: dict[tuple, list[str]] = {}
        for entry in entries:
            own, published = entry.run.facts.get(key), entry.run.facts.get(f"paper_{key}")
            if own and published and own != published and not entry.miniature:
                different.setdefault((own, published), []).append(entry.name)
        for values, names in different.items():
            yield f"{text.format(*values)}: {', '.join(names)}"
    if len({entry.miniature for entry in entries}) > 1:
        yield "miniatures and runs in full stand in one table"


def _compare(entries: Sequence[Entry], baseline: str) -> None:
    """Fills `baseline` and `p` of each run of another method; p stays None where there is nothing to compare.

    p is that of a paired bootstrap on the test set's sentences. Each run meets the baseline's run of the same row but
    for the method, with the same seed if there is one. Needed are the translations of both, and the corpus where their
    command says it lies, for its references; or a record of the test.
    """
    scored = [entry for entry in entries if entry.status.state is State.SCORED]
    for entry in scored:
        rivals = [other for other in scored if other.run.method == baseline and _place(other) == _place(entry)]
        if entry.run.method == baseline or not rivals:
            continue
        rival = next((other for other in rivals if other.run.seed == entry.run.seed), rivals[0])
        entry.baseline, entry.p = rival.name, _p(rival, entry)


def _place(entry: Entry) -> tuple:
    """Its row but for the method."""
    return tuple(value for key, value in zip(entry.table.keys, entry.key, strict=True) if key != "method")


def _p(baseline: Entry, entry: Entry) -> float | None:
    from ..scoring import compare_to_baseline

    run, rival = entry.run, baseline.run
    p = run.paired.get(rival.address)
    if p is not None:
        if not isinstance(p, (int, float)):
            raise UserError(f"{run.where('paired')}: p against {rival.address} is {p!r}, no number; {MEND}")
        return p
    data = _data(entry)
    if data is not None and data == _data(baseline):
        with suppress(UserError):  # as where translations were not kept
            return compare_to_baseline(rival.place, run.place, data)
    return None


def _data(entry: Entry) -> str | None:
    """The binarised data a run was trained on, if it is still there."""
    with suppress(OSError, ValueError, IndexError):
        data = shlex.split(entry.run.command or "")[1]
        return data if Path(data.split(":")[0]).is_dir() else None
    return None
