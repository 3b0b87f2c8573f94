"""How the depth study's best rates go with depth, as tables: what `deepnet transfer` finds in its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from .depth_tables import CORE, SAME, grids
from .optimum import NOISE, Optimum
from .runs import RecordedRun
from .style import style_of
from .transfer import Transfer, analyse
from .transfer_report import held_out
from .trials import Trial, by_method, trial_of

SHALLOW, DEEP = 18, (50, 100)  # layers: rates are predicted from depths up to the first for the others; deeper: no grid


def trials(runs: Iterable[RecordedRun]) -> list[list[Trial]]:
    """Of CORE, a list a method and length; with what is the SAME as another."""
    found = [trial_of(run) for run in runs]
    for (method, layers), twin in SAME.items():
        if any(trial.method == method for trial in found):
            found += [replace(one, method=method) for one in found if (one.method, one.layers) == (twin, layers)]
    groups = by_method(trial for trial in found if trial.method in CORE)
    return sorted(groups, key=lambda group: CORE.index(group[0].method))


def transfers(runs: list[RecordedRun]) -> list[Transfer]:
    """What the runs of the usual length tell of each method."""
    return [analyse(group) for group in trials(run for run in grids(runs) if run.layers <= DEEP[-1])]


def rows_of_exponents(runs: list[RecordedRun]) -> list[list[str]]:
    """Of each method the best rate at each depth, by a parabola, its exponent, does it stay where it is, and why."""
    found = transfers(runs)
    depths = sorted({one.layers for transfer in found for one in transfer.optima})
    return [["method", *_head(depths)], *([style_of(one.method).label, *_exponent(one, depths)] for one in found)]


def _head(depths: Iterable[int]) -> list[str]:
    return [*(f"{layers}L-{layers}L" for layers in depths), "b", "95%", "does it stay?", "why"]


def _exponent(transfer: Transfer, depths: Iterable[int]) -> list[str]:
    """The cells below _head."""
    optima, law = {one.layers: one for one in transfer.optima}, ["-", "-"]
    if transfer.law:
        low, high = transfer.law.exponents()
        law = [f"{transfer.law.exponent:.2f}", f"{low:.2f} to {high:.2f}"]
    return [*(_placed(optima.get(layers)) for layers in depths), *law, transfer.stays, transfer.why]


def _placed(one: Optimum | None) -> str:
    """As "0.0021"; "~0.002" where a rate beside it came to nothing."""
    if one is None or not one.placed:
        return "not placed" if one else "-"
    return f"{'~' if one.note else ''}{one.rate:.2g}"


def rows_of_predictions(runs: list[RecordedRun]) -> list[list[str]]:
    """What depths up to SHALLOW predict for the DEEP ones beside what was found there; see transfer_report.held_out."""
    groups = trials(grids(runs))
    there = [layers for layers in DEEP if any(trial.layers == layers for group in groups for trial in group)]
    header, *rows = held_out(groups, SHALLOW, there, NOISE)
    return [header, *([style_of(method).label, *cells] for method, *cells in rows)]


def rows_of_lengths(runs: list[RecordedRun]) -> list[list[str]]:
    """rows_of_exponents of trainings longer than the usual, below those of the usual length at the same depths.

    Depths with one rate alone are left out.
    """
    usual = {group[0].method: group for group in trials(grids(runs))}
    lengths = {trial.updates for group in usual.values() for trial in group}
    pairs = []
    for group in trials(run for run in runs if run.facts["updates"] > max(lengths, default=0)):
        rates = {(trial.layers, trial.rate) for trial in group}
        depths = [layers for layers, count in Counter(layers for layers, _ in rates).items() if count > 1]
        beside = (usual.get(group[0].method, []), group)
        pairs += [part for one in beside if (part := [trial for trial in one if trial.layers in depths])]
    depths = sorted({trial.layers for group in pairs for trial in group})
    rows = [["method", "updates", *_head(depths)]]
    for told in map(analyse, pairs):
        rows.append([style_of(told.method).label, f"{told.updates:,}", *_exponent(told, depths)])
    return rows
