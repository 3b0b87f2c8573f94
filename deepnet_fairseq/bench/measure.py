"""DOC"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .memory import conditions, limited, measure_memory, side_by_side
from .settings import Candidate, Settings, Shape
from .trials import Building, Checkpointing, Generating, Training, Trial
from .turns import UNAVAILABLE, Cell, interleave, recorded

TRIALS = (Building, Training, Generating, Checkpointing)
Cells = dict[str, Cell]  # by candidate


def measure(shape: Shape, candidates: list[Candidate], settings: Settings, only: tuple[str, ...]) -> Iterator[Cell]:
    """Cells of `only`, names of measures, as they are done: build, train, generate, checkpoint, memory."""
    for kind in TRIALS:
        if kind.name in only:
            progress(kind.name, shape)
            with limited(settings.torch_device):
                yield from _measure(kind(shape, settings), candidates)
    if "memory" in only:
        for condition, changed in conditions(settings):
            progress("memory", shape, **condition)
            cells = _cells("memory", shape, candidates, condition)
            for candidate in candidates:
                if not cells[candidate.name].reason:
                    measure_memory(candidate, shape, changed, cells[candidate.name])
            _check_work(cells)
            yield from cells.values()


def progress(measure: str, shape: Shape, **condition) -> None:
    """Says on stderr what is measured now."""
    words = (shape.depth, shape.width, measure, *(f"{name} {value}" for name, value in condition.items()))
    print("bench:", *words, file=sys.stderr, flush=True)


def _cells(measure: str, shape: Shape, candidates: list[Candidate], condition: dict) -> Cells:
    """An empty cell for each candidate; one that cannot run here says why."""
    cells = {c.name: Cell(measure, c.name, shape.depth, shape.width, condition) for c in candidates}
    for candidate in candidates:
        if candidate.unavailable:
            cells[candidate.name].end(UNAVAILABLE, candidate.unavailable)
    return cells


def _measure(trial: Trial, candidates: list[Candidate]) -> list[Cell]:
    rows = [(c, _cells(trial.name, trial.shape, candidates, c)) for c in trial.conditions()]
    for group, repeats in _rounds(trial, candidates):
        with _entered(trial, group, rows) as alive:
            for condition, cells in rows:
                _repeat(trial, alive, condition, cells, repeats)
    for _, cells in rows:
        _check_work(cells)
    return [cell for _, cells in rows for cell in cells.values()]


def _rounds(trial: Trial, candidates: list[Candidate]) -> Iterator[tuple[list[Candidate], range]]:
    """Who is alive at a time, and for which repeats: all for all; where memory is short, one by one, there and back."""
    able = [candidate for candidate in candidates if not candidate.unavailable]
    half, whole = (trial.settings.repeats + 1) // 2, trial.settings.repeats
    if trial.alone or side_by_side(len(able), trial.shape, trial.settings):
        yield able, range(whole)
        return
    for candidate in able:
        yield [candidate], range(half)
    for candidate in reversed(able):
        if half < whole:
            yield [candidate], range(half, whole)


@contextmanager
def _entered(trial: Trial, group: list[Candidate], rows: list[tuple[dict, Cells]]) -> Iterator[dict]:
    """Name -> contender of those that could be made; why others could not is in all their cells."""
    alive = {}
    try:
        for candidate in group:
            if all(cells[candidate.name].reason for _, cells in rows):
                continue
            made = Cell(trial.name, candidate.name, trial.shape.depth, trial.shape.width)
            with recorded(made, trial.settings.seconds):
                alive[candidate.name] = trial.enter(candidate)
            for _, cells in rows:
                if made.reason:
                    cells[candidate.name].end(made.state, made.reason)
        yield alive
    finally:
        for contender in alive.values():
            contender.close()


def _repeat(trial: Trial, alive: dict, condition: dict, cells: Cells, repeats: range) -> None:
    """Warm-up, then the repeats that count."""
    seconds = trial.settings.seconds
    runs = {
        name: lambda repeat, contender=contender: trial.run(contender, repeat, **condition)
        for name, contender in alive.items()
        if not cells[name].reason
    }
    warm_ups = {name: lambda repeat, run=run: run(repeat) and None for name, run in runs.items()}
    interleave(cells, warm_ups, range(-trial.warmup, 0), seconds)
    interleave(cells, runs, repeats, seconds)
    for name in runs:
        if cells[name].repeats:
            cells[name].facts = trial.facts(alive[name], **condition)


def _check_work(cells: Cells) -> None:
    """All that were measured had the same tokens."""
    tokens = {name: cell.facts["tokens"] for name, cell in cells.items() if "tokens" in cell.facts}
    assert len({tuple(row) for row in tokens.values()}) <= 1, tokens
