"""NormFormer's Figure 4: what the gains of its LayerNorms and its factors on heads have become, layer by layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...probes.learned_scale import STATISTICS
from .. import paper_normformer as paper
from ..recorded_run import RecordedRun
from ..style import Style, style_of
from . import by_layer
from .sheet import Sheet
from .summary import number, page, read_off

METHOD = "normformer"
PAPER = Style("NormFormer, paper", "#0072B2", "D")
PANELS = {  # slot of the paper -> title, and the slots where a model may have it
    "ffn.inner": ("(a) LayerNorm behind the activation", ("ffn.inner",)),
    "self_attn.outer": ("(b) LayerNorm behind self-attention", ("self_attn.outer",)),
    "self_attn.inner.c": ("(c) factors on heads", ("self_attn.inner.c", "self_attn.outer.c")),
}


def draw(runs: list[RecordedRun], path: Path) -> str:
    """runs: of NormFormer, probed with learned_scale; each is drawn at its last probed update."""
    of_method = [run for run in runs if run.method == METHOD]
    found = by_layer.must_be_probed(of_method or runs, "learned_scale", f"run of {style_of(METHOD).label}")
    sheet = Sheet(len(PANELS), 1, paper.SETTING, size=(4.0, 3.6))
    tables = [_panel(sheet, rank, slot, found) for rank, slot in enumerate(PANELS)]
    sheet.save(path)
    source = f"paper: {paper.SETTING}, Figure 4, {paper.ERROR}; medians in (a) and (b), least and largest factor in (c)"
    return page("NormFormer, Figure 4: learned scales by layer", tables, (), source)


def statistics(run: RecordedRun, slot: str) -> dict[str, np.ndarray]:
    """Median, least and largest by layer at the last probed update, each (layers,)."""
    values = run.probe(by_layer.updates(run, "learned_scale")[-1], "learned_scale")
    places = [place for place in PANELS[slot][1] if np.isfinite(by_layer.along(run, values, f"{place}.median")).any()]
    place = places[0] if places else slot
    return {statistic: by_layer.along(run, values, f"{place}.{statistic}") for statistic in STATISTICS}


def _panel(sheet: Sheet, panel: int, slot: str, runs: list[RecordedRun]) -> list[list[str]]:
    """Medians joined, least to largest shaded, and the paper's; its table."""
    title, points = PANELS[slot][0], paper.FIGURE4[slot]
    rows = [[title, "model", "update", "layer", "median", "least", "largest", "paper"]]
    low, high = zip(*points.values(), strict=True)
    joined = len(points) == paper.LAYERS
    for edge in (low, high) if low != high else (low,):
        sheet.paper(panel, list(points), edge, PAPER, **({"marker": "none"} if joined else {"linestyle": "none"}))
    for run, style in by_layer.styles(runs).items():
        found, layers = statistics(run, slot), by_layer.layers(run)
        if not np.isfinite(found["median"]).any():
            continue
        sheet.curve(panel, layers, found["median"], style)
        sheet.panels[panel].fill_between(layers, found["min"], found["max"], color=style.colour, alpha=0.2, linewidth=0)
        update = str(by_layer.updates(run, "learned_scale")[-1])
        for layer in by_layer.shown(run):
            numbers = [number(values[layer - 1]) for values in found.values()]
            theirs = points.get(layer) if by_layer.depth(run) == paper.LAYERS else None
            rows.append([style.label, run.depth, update, str(layer), *numbers, _published(theirs)])
    sheet.label(panel, title, "layer", "median, least to largest")
    return rows


def _published(band: tuple[float, float] | None) -> str:
    return "-" if band is None else " to ".join(dict.fromkeys(map(read_off, band)))
