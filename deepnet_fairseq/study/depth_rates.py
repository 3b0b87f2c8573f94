"""How the depth study's best rates go with depth, as tables: what `deepnet transfer` finds in its runs."""

from __future__ import annotations

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
    named = [f"{layers}L-{layers}L" for layers in depths]
    rows = [["method", *named, "b", "95%", "does it stay?", "why"]]
    for transfer in found:
        optima = {one.layers: one for one in transfer.optima}
        law = ["-", "-"]
        if transfer.law:
            low, high = transfer.law.exponents()
            law = [f"{transfer.law.exponent:.2f}", f"{low:.2f} to {high:.2f}"]
        rates = [_placed(optima.get(layers)) for layers in depths]
        rows.append([style_of(transfer.method).label, *rates, *law, transfer.stays, transfer.why])
    return rows


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
    """The best rates of trainings of another length beside those of the usual one, at the same depth."""
    usual = {(one.method, o.layers): o for one in transfers(runs) for o in one.optima}
    rows = [["method", "depth", "updates", "best rate", "at the usual length"]]
    lengths = {run.facts["updates"] for run in grids(runs)}
    for group in trials(run for run in runs if run.facts["updates"] not in lengths):
        told = analyse(group)
        for one in told.optima:
            if one.trainings > 1:
                beside = usual.get((told.method, one.layers))
                cells = [f"{told.updates:,}", one.why or _placed(one), _placed(beside)]
                rows.append([style_of(told.method).label, f"{one.layers}L-{one.layers}L", *cells])
    return rows
