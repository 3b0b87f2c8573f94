"""Is a run better or worse than the baseline's run beyond chance? p of a paired test on the test set's sentences."""

from __future__ import annotations

from collections.abc import Iterable

from .result import Entry


def compare(entries: Iterable[Entry], baseline: str) -> None:
    """Fills `baseline` and `p` of each scored run of another method that has a scored run of `baseline` to meet."""
