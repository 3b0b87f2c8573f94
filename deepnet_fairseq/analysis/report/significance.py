"""Is a run better or worse than the baseline's beyond chance? p of a paired bootstrap on the test set's sentences."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...errors import UserError
from .entry import Entry, key_of
from .paired import read_paired
from .standing import State


def compare(entries: Sequence[Entry], baseline: str) -> None:
    """Fills `baseline` and `p` of each run of another method; p stays None where there is nothing to compare.

    Each meets the baseline's run of the same row but for the method, with the same seed if there is one. Needed are the
    translations of both, and the corpus where their command says it lies, for its references; or a record of the test.
    """
    scored = [entry for entry in entries if entry.standing.state is State.SCORED]
    for entry in scored:
        rivals = [other for other in scored if other.run.method == baseline and _place(other) == _place(entry)]
        if entry.run.method == baseline or not rivals:
            continue
        rival = next((other for other in rivals if other.run.seed == entry.run.seed), rivals[0])
        entry.baseline, entry.p = rival.name, _p(rival.run.folder, entry.run.folder)


def _place(entry: Entry) -> tuple:
    """Its row but for the method."""
    keys = zip(entry.table.keys, key_of(entry.table, entry.run), strict=True)
    return tuple(value for key, value in keys if key != "method")


def _p(baseline: Path, run: Path) -> float | None:
    from ..scoring import compare_to_baseline

    if (recorded := read_paired(run, baseline)) is not None:
        return recorded
    data = _data(run)
    if data is None or data != _data(baseline):
        return None
    with suppress(UserError):  # as where translations were not kept
        return compare_to_baseline(baseline, run, data)
    return None


def _data(run: Path) -> str | None:
    """The binarised data a run was trained on, if it is still there."""
    with suppress(OSError, ValueError, IndexError):
        data = shlex.split((run / "command").read_text(encoding="utf-8"))[1]
        return data if Path(data.split(":")[0]).is_dir() else None
    return None
