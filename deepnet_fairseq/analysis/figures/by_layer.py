"""Recorded runs of models of any kind, along the layers of one stack: the decoder, or the encoder of one without."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ...errors import UserError
from ...probes.record import FILE, Values
from ..recorded_run import RecordedRun
from ..style import Style, style_of, style_of_setting

ROWS = 12  # of a table, at most


def probed(runs: list[RecordedRun], probe: str) -> list[RecordedRun]:
    """The runs that recorded something of this probe."""
    with_file = [run for run in runs if (run.folder / FILE).is_file()]
    return [run for run in with_file if updates(run, probe)]


def must_be_probed(runs: list[RecordedRun], probe: str, what: str) -> list[RecordedRun]:
    """The same; UserError, calling the runs `what`, if there is none with this probe."""
    if found := probed(runs, probe):
        return found
    raise UserError(f"{runs[0].folder.parent}: no {what} with {probe}; record one with --deepnet-probe {probe}")


def updates(run: RecordedRun, probe: str) -> list[int]:
    """Those at which the probe found something, in their order."""
    return [update for update in run.record.updates() if run.record.rows[update].get(probe)]


def depth(run: RecordedRun) -> int:
    """Layers of the stack that is drawn."""
    return run.decoder_layers or run.encoder_layers


def along(run: RecordedRun, values: Values, place: str) -> np.ndarray:
    """Values at "STACK.LAYER.place" by layer, (layers,); NaN where there is none."""
    stack = "decoder" if run.decoder_layers else "encoder"
    return np.array([values.get(f"{stack}.{layer}.{place}", np.nan) for layer in range(1, depth(run) + 1)])


def layers(run: RecordedRun) -> range:
    """Numbers of the stack's layers, from 1."""
    return range(1, depth(run) + 1)


def shown(run: RecordedRun) -> list[int]:
    """The layers that a table shows: all, or some of a deep stack with its first and last."""
    return sorted({round(layer) for layer in np.linspace(1, depth(run), min(ROWS, depth(run)))})


def styles(runs: list[RecordedRun]) -> dict[RecordedRun, Style]:
    """A method's style for its only run; several of one method are told apart by their folder's name."""
    count = Counter(run.method for run in runs)
    alone = {run: style_of(run.method) for run in runs if count[run.method] == 1}
    several = [run for run in runs if run not in alone]
    labels = {run: f"{style_of(run.method).label}, {run.folder.name}" for run in several}
    return alone | {run: style_of_setting(rank, labels[run]) for rank, run in enumerate(several)}
