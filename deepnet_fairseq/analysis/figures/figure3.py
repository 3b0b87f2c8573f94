"""Figure 3: Post-LN's gradients vanish towards the bottom, Post-LN-init's do not, and it trains."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .. import paper
from ..recorded_run import RecordedRun
from ..style import style_of
from .sheet import Sheet
from .summary import means, number, read_off, summary

METHODS = ("post_ln", "post_ln_init")


def layer_norms(run: RecordedRun) -> dict[int, float]:
    """Decoder layer, from 1 -> norm of its gradient in the first update."""
    values = run.probe(0, "gradient_norm")
    layers = {l: values.get(f"decoder.{l}", np.nan) for l in range(1, run.decoder_layers + 1)}
    return {l: norm for l, norm in layers.items() if np.isfinite(norm)}


def draw(runs: list[RecordedRun], path: Path) -> str:
    """runs: "part": "profile" with probes of update 0, or "curve" with validation losses."""
    parts: dict[str, list[RecordedRun]] = {"profile": [], "curve": []}
    for run in runs:
        run.choice("method", METHODS)
        parts[run.choice("part", parts)].append(run)
    profiles, curves = parts.values()
    sheet = Sheet(3, 1, paper.SETTING[3], size=(4.2, 3.8))
    tables = [_profile(sheet, profiles), _last(sheet, profiles), _loss(sheet, curves)]
    sheet.save(path)
    there = {(run.method, part) for part, found in parts.items() for run in found}
    missing = [f"{method}, {part}" for part in parts for method in METHODS if (method, part) not in there]
    return summary(3, "gradient norm by layer and by depth, validation loss", tables, missing)


def _profile(sheet: Sheet, runs: list[RecordedRun]) -> list[list[str]]:
    """Panel (a): bars of the last layers of each method's deepest model, the paper's as dashed outlines."""
    axes, rows = sheet.panels[0], [["(a) layer from the top", "method", "model", "gradient norm", "paper, 18L-18L"]]
    deepest = {run.method: run for run in sorted(runs, key=lambda run: run.decoder_layers)}
    for rank, method in enumerate(METHODS):
        style, run = style_of(method), deepest.get(method)
        norms = layer_norms(run) if run else {}
        for k, theirs in enumerate(reversed(paper.FIGURE3_NORMS[method])):
            mine = norms.get(run.decoder_layers - k) if run else None
            x = -k + 0.4 * (rank - 0.5)
            axes.bar(x - 0.09, mine or 0, 0.17, color=style.colour)
            axes.bar(x + 0.09, theirs, 0.17, fill=False, edgecolor=style.colour, linestyle="--")
            rows.append([str(k), style.label, run.depth if run else "-", number(mine), read_off(theirs)])
    top = range(1 - len(paper.FIGURE3_LAYERS), 1)
    axes.set_xticks(top, [f"M{k}" if k else "M" for k in top])
    models = ", ".join(sorted({run.depth for run in deepest.values()})) or "no run"
    sheet.label(0, f"(a) {models}; paper 18L-18L", "decoder layer, M the last", "gradient norm")
    return rows


def _last(sheet: Sheet, runs: list[RecordedRun]) -> list[list[str]]:
    """Panel (b): the last decoder layer against depth."""
    rows = [["(b) layers", "method", "gradient norm of the last layer", "paper"]]
    for method in METHODS:
        style, band = style_of(method), paper.FIGURE3_LAST[method]
        found = means((r.layers, layer_norms(r).get(r.decoder_layers, np.nan)) for r in runs if r.method == method)
        if found:
            sheet.curve(1, list(found), list(found.values()), style)
        low, high = zip(*band.values(), strict=True)
        for edge in (low, high) if low != high else (low,):
            sheet.paper(1, list(band), edge, style)
        for layers, norm in found.items():
            edges = [np.interp(layers, list(band), edge, left=np.nan, right=np.nan) for edge in (low, high)]
            rows.append([str(layers), style.label, number(norm), " to ".join(dict.fromkeys(map(number, edges)))])
    sheet.label(1, "(b) last decoder layer", "layers N of an N-N model", "gradient norm")
    return rows


def _loss(sheet: Sheet, runs: list[RecordedRun]) -> list[list[str]]:
    """Panel (c): validation loss over epochs if each has one loss, else over updates."""
    rows = [["(c) method", "model", "updates", "final validation loss", "paper, 18L-18L"]]
    epochs = all(run.validation.once_an_epoch for run in runs)
    above = None if epochs else sheet.paper_axis(2, "epochs (paper)")
    for method in METHODS:
        points, style = paper.FIGURE3_LOSS[method], style_of(method)
        sheet.paper(2, [epoch + 1 for epoch in points], list(points.values()), style, above)
        for run in (run for run in runs if run.method == method):
            curve = run.validation
            x = curve.epochs if epochs else curve.updates
            sheet.curve(2, x, curve.losses, style, markersize=2.5)
            if run.diverged:
                sheet.diverged(2, x[-1] if x else 0, style)
            last = number(curve.final) + (" (diverged)" if run.diverged else "")
            rows.append([style.label, run.depth, str(curve.end), last, read_off([*points.values()][-1])])
    models = ", ".join(sorted({run.depth for run in runs})) or "no run"
    sheet.label(2, f"(c) {models}", "epochs" if epochs else "updates (measured)", "validation loss (bits per token)")
    return rows
