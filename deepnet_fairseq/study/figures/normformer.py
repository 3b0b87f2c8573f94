"""NormFormer's Figures 3 and 4, of models of any kind: gradients and learned scales along the layers of one stack.

The stack is the decoder, or the encoder of a model without.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from matplotlib.ticker import ScalarFormatter

from ...core.probes.learned_scale import STATISTICS
from ...errors import UserError
from ...plugin.probe_record import Values
from .. import paper
from ..runs import RecordedRun
from ..style import PLAIN, Style, style_of, style_of_setting
from .sheet import Sheet, number, page, read_off

ROWS = 12  # of a table, at most
MEASURE = "mean |element| of fc2's gradient"
METHODS = ("post_ln", "pre_ln", "normformer")
EARLY = 1000  # updates; the paper does not say how many
PAPER = Style("NormFormer, paper", "#0072B2", "D")
PANELS = {  # slot of the paper's Figure 4 -> title, and the slots where a model may have it
    "ffn.inner": ("(a) LayerNorm behind the activation", ("ffn.inner",)),
    "self_attn.outer": ("(b) LayerNorm behind self-attention", ("self_attn.outer",)),
    "self_attn.inner.c": ("(c) factors on heads", ("self_attn.inner.c", "self_attn.outer.c")),
}


def probed(runs: list[RecordedRun], probe: str, what: str) -> list[RecordedRun]:
    """The runs that recorded something of this probe; UserError, calling the runs `what`, if there is none."""
    if found := [run for run in runs if run.probed(probe)]:
        return found
    raise UserError(f"{runs[0].place.parent}: no {what} with {probe}; record one with --deepnet-probe {probe}")


def layers(run: RecordedRun) -> range:
    """Numbers of the stack's layers, from 1."""
    return range(1, (run.decoder_layers or run.encoder_layers) + 1)


def along(run: RecordedRun, values: Values, place: str) -> np.ndarray:
    """Values at "STACK.LAYER.place" by layer, (layers,); NaN where there is none."""
    stack = "decoder" if run.decoder_layers else "encoder"
    return np.array([values.get(f"{stack}.{layer}.{place}", np.nan) for layer in layers(run)])


def shown(run: RecordedRun) -> list[int]:
    """The layers that a table shows: all, or some of a deep stack with its first and last."""
    last = layers(run)[-1]
    return sorted({round(layer) for layer in np.linspace(1, last, min(ROWS, last))})


def styles(runs: list[RecordedRun]) -> dict[RecordedRun, Style]:
    """A method's style for its only run; several of one method are told apart by their folder's name."""
    count = Counter(run.method for run in runs)
    alone = {run: style_of(run.method) for run in runs if count[run.method] == 1}
    labels = {run: f"{style_of(run.method).label}, {run.name}" for run in runs if run not in alone}
    return alone | {run: style_of_setting(rank, label) for rank, (run, label) in enumerate(labels.items())}


def normformer3(runs: list[RecordedRun], path: Path) -> str:
    """Figure 3: early in training Pre-LN's first layers get the largest gradients, and Post-LN's the smallest.

    The paper takes the L1 norm of the gradient of the second feed-forward matrix. runs: probed with gradient_l1.
    """
    found = probed(runs, "gradient_l1", "run")
    sheet = Sheet(2, 1, paper.NORMFORMER_SETTING, size=(4.8, 3.8))
    tables = _gradients(sheet, found)
    for panel in (0, 1):
        sheet.panels[panel].set_yscale("log")
    sheet.panels[1].yaxis.set_major_formatter(ScalarFormatter())
    sheet.panels[1].yaxis.set_minor_formatter(ScalarFormatter())
    sheet.save(path)
    missing = [style_of(method).label for method in METHODS if all(run.method != method for run in found)]
    source = f"paper: {paper.NORMFORMER_SETTING}; what its text says, no number of its Figure 3 can be read"
    return page(f"NormFormer, Figure 3: {MEASURE} by layer", tables, missing, source)


def _gradients(sheet: Sheet, runs: list[RecordedRun]) -> list[list[list[str]]]:
    """Panel (a): the mean of the first updates, by layer; (b): the first layer's over the last one's, by update.

    UserError for a run without an update among the first EARLY.
    """
    means = [["(a) run", "model", "layer", MEASURE]]
    ratios = [["(b) run", "model", "updates", "first layer / last, mean of them", "at update", "first / last", "paper"]]
    sheet.panels[1].axhline(1, color=PLAIN, linewidth=0.8)
    last = 0
    for run, style in styles(runs).items():
        updates = run.probed("gradient_l1")
        norms = {update: along(run, run.probe(update, "gradient_l1"), "ffn.fc2") for update in updates}
        early_updates = [update for update in norms if update <= EARLY]
        if not early_updates:
            raise UserError(f"{run.where('probes')}: has no gradient_l1 in the first {EARLY:,} updates")
        mean, last = np.mean([norms[update] for update in early_updates], axis=0), max(last, *early_updates)
        ratio = {update: float(values[0] / values[-1]) for update, values in norms.items()}
        sheet.curve(0, layers(run), mean, style)
        sheet.points(1, ratio, (), style, markersize=2.5)
        means += [[style.label, run.depth, str(layer), number(mean[layer - 1])] for layer in shown(run)]
        end = max(norms)
        ratios.append([
            style.label, run.depth, f"{early_updates[0]} to {early_updates[-1]}", number(mean[0] / mean[-1]), str(end),
            number(ratio[end]), paper.NORMFORMER_FIGURE3.get(run.method, "-"),
        ])  # fmt: skip
    sheet.label(0, f"(a) mean of the probed updates 0 to {last}", "layer", MEASURE)
    sheet.label(1, "(b) first layer / last layer", "updates made", "ratio")
    return [means, ratios]


def normformer4(runs: list[RecordedRun], path: Path) -> str:
    """Figure 4: what the gains of its LayerNorms and its factors on heads have become, layer by layer.

    runs: of NormFormer, probed with learned_scale; each is drawn at its last probed update.
    """
    of_method = [run for run in runs if run.method == "normformer"]
    found = probed(of_method or runs, "learned_scale", "run of NormFormer")
    sheet = Sheet(len(PANELS), 1, paper.NORMFORMER_SETTING, size=(4.0, 3.6))
    tables = [_scales(sheet, rank, slot, found) for rank, slot in enumerate(PANELS)]
    sheet.save(path)
    source = (
        f"paper: {paper.NORMFORMER_SETTING}, Figure 4, {paper.NORMFORMER_ERROR}; medians in (a) and (b), "
        "least and largest factor in (c)"
    )
    return page("NormFormer, Figure 4: learned scales by layer", tables, (), source)


def _scales(sheet: Sheet, panel: int, slot: str, runs: list[RecordedRun]) -> list[list[str]]:
    """Medians joined, least to largest shaded, and the paper's; its table."""
    (title, slots), points = PANELS[slot], paper.NORMFORMER_FIGURE4[slot]
    rows = [[title, "model", "update", "layer", "median", "least", "largest", "paper"]]
    low, high = zip(*points.values(), strict=True)
    joined = len(points) == paper.NORMFORMER_LAYERS
    for edge in (low, high) if low != high else (low,):
        sheet.paper(panel, list(points), edge, PAPER, **({"marker": "none"} if joined else {"linestyle": "none"}))
    for run, style in styles(runs).items():
        update = run.probed("learned_scale")[-1]
        values = run.probe(update, "learned_scale")
        measured_slots = [place for place in slots if np.isfinite(along(run, values, f"{place}.median")).any()]
        if not measured_slots:
            continue
        found = {statistic: along(run, values, f"{measured_slots[0]}.{statistic}") for statistic in STATISTICS}
        sheet.curve(panel, layers(run), found["median"], style)
        band = found["min"], found["max"]
        sheet.panels[panel].fill_between(layers(run), *band, color=style.colour, alpha=0.2, linewidth=0)
        for layer in shown(run):
            numbers = [number(values[layer - 1]) for values in found.values()]
            theirs = points.get(layer, ()) if layers(run)[-1] == paper.NORMFORMER_LAYERS else ()
            published = " to ".join(dict.fromkeys(map(read_off, theirs))) or "-"
            rows.append([style.label, run.depth, str(update), str(layer), *numbers, published])
    sheet.label(panel, title, "layer", "median, least to largest")
    return rows
