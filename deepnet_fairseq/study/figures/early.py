"""Figures 3 and 4: gradients along the layers, and what the first updates do with and without warm-up."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...errors import UserError
from .. import paper
from ..runs import RecordedRun
from ..style import Style, style_of
from .sheet import Sheet, means, models, number, read_off, summary

METHODS = ("post_ln", "post_ln_init")  # of Figure 3
SERIES = {  # of Figure 4
    "post_ln_no_warmup": Style("Post-LN, no warm-up", "#CC79A7", "^"),
    "post_ln_warmup": replace(style_of("post_ln"), label="Post-LN, warm-up"),
    "post_ln_init_warmup": replace(style_of("post_ln_init"), label="Post-LN-init, warm-up"),
}
PAPER_WIDTH = 512


def layer_norms(run: RecordedRun, update: int) -> dict[int, float]:
    """Decoder layer, from 1 -> norm of its gradient in that update, NaN where there is none."""
    values = run.probe(update, "gradient_norm")
    return {l: values.get(f"decoder.{l}", np.nan) for l in range(1, run.decoder_layers + 1)}


def figure3(runs: list[RecordedRun], path: Path) -> str:
    """Post-LN's gradients vanish towards the bottom, Post-LN-init's do not, and it trains.

    runs: "part": "profile" with probes of update 0, or "curve" with validation losses.
    """
    parts: dict[str, list[RecordedRun]] = {"profile": [], "curve": []}
    for run in runs:
        run.choice("method", METHODS)
        parts[run.choice("part", parts)].append(run)
    sheet = Sheet(3, 1, paper.SETTING[3], size=(4.2, 3.8))
    norms = {run: layer_norms(run, 0) for run in parts["profile"]}
    tables = [_profile(sheet, norms), _last(sheet, norms), _loss(sheet, parts["curve"])]
    sheet.save(path)
    there = {(run.method, part) for part, found in parts.items() for run in found}
    missing = [f"{method}, {part}" for part in parts for method in METHODS if (method, part) not in there]
    return summary(3, "gradient norm by layer and by depth, validation loss", tables, missing)


def _profile(sheet: Sheet, norms: dict[RecordedRun, dict[int, float]]) -> list[list[str]]:
    """Panel (a): bars of the last layers of each method's deepest model, the paper's as dashed outlines."""
    axes, rows = sheet.panels[0], [["(a) layer from the top", "method", "model", "gradient norm", "paper, 18L-18L"]]
    deepest = {run.method: run for run in sorted(norms, key=lambda run: run.decoder_layers)}
    for rank, method in enumerate(METHODS):
        style, run = style_of(method), deepest.get(method)
        for k, theirs in enumerate(reversed(paper.FIGURE3_NORMS[method])):
            mine = norms[run].get(run.decoder_layers - k, np.nan) if run else np.nan
            x = -k + 0.4 * (rank - 0.5)
            axes.bar(x - 0.09, np.nan_to_num(mine), 0.17, color=style.colour)
            axes.bar(x + 0.09, theirs, 0.17, fill=False, edgecolor=style.colour, linestyle="--")
            rows.append([str(k), style.label, run.depth if run else "-", number(mine), read_off(theirs)])
    top = range(1 - len(paper.FIGURE3_LAYERS), 1)
    axes.set_xticks(top, [f"M{k}" if k else "M" for k in top])
    sheet.label(0, f"(a) {models(deepest.values())}; paper 18L-18L", "decoder layer, M the last", "gradient norm")
    return rows


def _last(sheet: Sheet, norms: dict[RecordedRun, dict[int, float]]) -> list[list[str]]:
    """Panel (b): the last decoder layer against depth."""
    rows = [["(b) layers", "method", "gradient norm of the last layer", "paper"]]
    for method in METHODS:
        style, band = style_of(method), paper.FIGURE3_LAST[method]
        found = means((run.layers, norms[run][run.decoder_layers]) for run in norms if run.method == method)
        sheet.points(1, found, (), style)
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
            last = sheet.validation(2, run, curve.epochs if epochs else curve.updates, style)
            rows.append([style.label, run.depth, str(curve.end), last, read_off([*points.values()][-1])])
    x_label = "epochs" if epochs else "updates (measured)"
    sheet.label(2, f"(c) {models(runs)}", x_label, "validation loss (bits per token)")
    return rows


def norm_curve(run: RecordedRun, sublayer: str) -> dict[int, float]:
    """Update -> the norm that the LayerNorms of all such branches of both stacks read, their mean.

    sublayer: "ffn" or "self_attn".
    """
    site = re.compile(rf"(encoder|decoder)\.\d+\.{sublayer}")
    found = {
        update: [value for where, value in run.probe(update, "ln_input").items() if site.fullmatch(where)]
        for update in run.probed("ln_input")
    }
    return {update: float(np.mean(norms)) for update, norms in found.items() if norms}


OVER_UPDATES = (  # probe, title, y axis, what is measured, the paper's
    (
        "model_update", "(a) accumulated model update", "||F(x,θᵢ) - F(x,θ₀)||",
        lambda run: dict(zip(*run.record.series("model_update", "decoder"), strict=True)), paper.FIGURE4_UPDATE,
    ),
    (
        "ln_input of ffn", "(b) what LN reads behind FFN", "L2 norm", lambda run: norm_curve(run, "ffn"),
        paper.FIGURE4_FFN,
    ),
    (
        "ln_input of self_attn", "(c) what LN reads behind self-attention", "L2 norm",
        lambda run: norm_curve(run, "self_attn"), paper.FIGURE4_ATTENTION,
    ),
)  # fmt: skip


def figure4(runs: list[RecordedRun], path: Path) -> str:
    """Without warm-up Post-LN's output jumps at once, its LayerNorms read more, and its gradients vanish.

    runs: one for each "series" of SERIES, probed at every update. UserError for two runs of a series, and for runs of
    several widths.
    """
    found: dict[str, RecordedRun] = {}
    for run in runs:
        if found.setdefault(run.choice("series", SERIES), run) is not run:
            raise UserError(f"{run.place}: is a second run of series {run.facts['series']}; move one away")
    sheet = Sheet(2, 2, paper.SETTING[4], size=(4.8, 3.4))
    widths = [run.record.header.get("encoder_embed_dim", PAPER_WIDTH) for run in runs]  # of the residual stream
    if len(set(widths)) > 1:
        raise UserError(f"{runs[0].place.parent}: runs of widths {', '.join(map(str, widths))}; record them at one")
    tables = [_over_updates(sheet, panel, found, widths[0]) for panel in range(len(OVER_UPDATES))]
    tables.append(_by_layer(sheet, found))
    sheet.save(path)
    title = f"the first updates of {models(runs)}, width {widths[0]}"
    return summary(4, title, tables, [series for series in SERIES if series not in found])


def _lacking(run: RecordedRun, what: str) -> UserError:
    return UserError(f"{run.where('probes')}: has no {what}; record it again with that probe")


def _over_updates(sheet: Sheet, panel: int, runs: dict[str, RecordedRun], width: int) -> list[list[str]]:
    """One panel and its table at the updates read off the paper; UserError where nothing was recorded.

    The norms are L2 over features, so they grow as sqrt(width): at another width the paper's get an axis of their own.
    """
    probe, title, y, curve, points = OVER_UPDATES[panel]
    scale = (width / PAPER_WIDTH) ** 0.5
    rows = [[title, "update", "measured", "/ sqrt(width)", "paper", "/ sqrt(width)"]]
    for series, style in SERIES.items():
        sheet.paper(panel, paper.FIGURE4_UPDATES, np.multiply(points[series], scale), style)
        measured = curve(runs[series]) if series in runs else {}
        if series in runs and not measured:
            raise _lacking(runs[series], probe)
        sheet.points(panel, measured, (), style, markersize=2.5)
        for update, value in zip(paper.FIGURE4_UPDATES, points[series], strict=True):
            mine = measured.get(update, np.nan)
            theirs = [read_off(value), number(value / PAPER_WIDTH**0.5)]
            rows.append([style.label, str(update), number(mine), number(mine / width**0.5), *theirs])
    sheet.label(panel, title, "updates made", y)
    if scale != 1:
        sheet.panels[panel].set_ylabel(f"{y}, width {width}")
        right = sheet.panels[panel].secondary_yaxis("right", functions=(lambda v: v / scale, lambda v: v * scale))
        right.set_ylabel(f"paper, width {PAPER_WIDTH}")
    return rows


def _by_layer(sheet: Sheet, runs: dict[str, RecordedRun]) -> list[list[str]]:
    """Panel (d) and its table: the last update with gradient norms; UserError if a run has none."""
    rows = [["(d) gradient norm of decoder layer", "layer", "update", "measured", "paper"]]
    for series, style in SERIES.items():
        points = paper.FIGURE4_GRADIENT[series]
        sheet.paper(3, list(points), list(points.values()), style)
        update, norms = "-", {}
        if run := runs.get(series):
            if not (updates := run.probed("gradient_norm")):
                raise _lacking(run, "gradient_norm")
            update, norms = str(updates[-1]), layer_norms(run, updates[-1])
        sheet.points(3, norms, (), style)
        for layer in sorted(points.keys() | ({1, max(norms)} if norms else set())):
            rows.append([style.label, str(layer), update, number(norms.get(layer)), read_off(points.get(layer))])
    sheet.label(3, "(d) gradient at the last recorded update", "decoder layer", "gradient norm")
    return rows
