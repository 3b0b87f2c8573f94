"""NormFormer's Figure 3: early in training Pre-LN's first layers get the largest gradients, and Post-LN's the smallest.

The paper takes the L1 norm of the gradient of the second feed-forward matrix; runs that recorded L2 norms alone are
drawn with these.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.ticker import ScalarFormatter

from ...errors import UserError
from .. import paper_normformer as paper
from ..recorded_run import RecordedRun
from ..style import PLAIN, style_of
from . import by_layer
from .sheet import Sheet
from .summary import number, page

MEASURES = {"gradient_l1": "mean |element| of fc2's gradient", "gradient_norm": "L2 norm of fc2's gradient"}
METHODS = ("post_ln", "pre_ln", "normformer")
EARLY = 1000  # updates; the paper does not say how many


def draw(runs: list[RecordedRun], path: Path) -> str:
    """runs: those probed with the measure that most of them have, the paper's if as many have it."""
    probe = max(MEASURES, key=lambda name: len(by_layer.probed(runs, name)))
    found = by_layer.must_be_probed(runs, probe, "run")
    sheet = Sheet(2, 1, paper.SETTING, size=(4.8, 3.8))
    tables = [_early(sheet, found, probe), _ratios(sheet, found, probe)]
    for panel in (0, 1):
        sheet.panels[panel].set_yscale("log")
    sheet.panels[1].yaxis.set_major_formatter(ScalarFormatter())
    sheet.panels[1].yaxis.set_minor_formatter(ScalarFormatter())
    sheet.save(path)
    missing = [style_of(method).label for method in METHODS if all(run.method != method for run in found)]
    source = f"paper: {paper.SETTING}; what its text says, no number of its Figure 3 can be read"
    return page(f"NormFormer, Figure 3: {MEASURES[probe]} by layer", tables, missing, source)


def early(run: RecordedRun, probe: str) -> tuple[list[int], np.ndarray]:
    """The probed updates among the first EARLY, and their mean by layer; UserError if there is none."""
    updates = [update for update in by_layer.updates(run, probe) if update <= EARLY]
    if not updates:
        raise UserError(f"{run.folder / 'probes.jsonl'}: has no {probe} in the first {EARLY:,} updates")
    return updates, np.mean([_norms(run, update, probe) for update in updates], axis=0)


def _norms(run: RecordedRun, update: int, probe: str) -> np.ndarray:
    return by_layer.along(run, run.probe(update, probe), "ffn.fc2")


def _early(sheet: Sheet, runs: list[RecordedRun], probe: str) -> list[list[str]]:
    """Panel (a): the mean of the first updates, by layer."""
    rows = [["(a) run", "model", "layer", MEASURES[probe]]]
    last = 0
    for run, style in by_layer.styles(runs).items():
        updates, norms = early(run, probe)
        last = max(last, *updates)
        sheet.curve(0, by_layer.layers(run), norms, style)
        rows += [[style.label, run.depth, str(l), number(norms[l - 1])] for l in by_layer.shown(run)]
    sheet.label(0, f"(a) mean of the probed updates 0 to {last}", "layer", MEASURES[probe])
    return rows


def _ratios(sheet: Sheet, runs: list[RecordedRun], probe: str) -> list[list[str]]:
    """Panel (b): the first layer's over the last one's, update by update."""
    rows = [["(b) run", "model", "updates", "first layer / last, mean of them", "at update", "first / last", "paper"]]
    sheet.panels[1].axhline(1, color=PLAIN, linewidth=0.8)
    for run, style in by_layer.styles(runs).items():
        seen, norms = early(run, probe)
        updates = by_layer.updates(run, probe)
        ratios = [float(values[0] / values[-1]) for values in (_norms(run, update, probe) for update in updates)]
        sheet.curve(1, updates, ratios, style, markersize=2.5)
        rows.append([
            style.label, run.depth, f"{seen[0]} to {seen[-1]}", number(norms[0] / norms[-1]), str(updates[-1]),
            number(ratios[-1]), paper.FIGURE3.get(run.method, "-"),
        ])  # fmt: skip
    sheet.label(1, "(b) first layer / last layer", "updates made", "ratio")
    return rows
