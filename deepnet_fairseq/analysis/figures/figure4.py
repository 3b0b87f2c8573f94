"""Figure 4: without warm-up Post-LN's output jumps at once, its LayerNorms read more, and its gradients vanish."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np

from ...errors import UserError
from .. import paper
from ..recorded_run import RecordedRun
from ..style import Style, style_of
from .sheet import Sheet
from .summary import number, read_off, summary

SERIES = {
    "post_ln_no_warmup": Style("Post-LN, no warm-up", "#CC79A7", "^"),
    "post_ln_warmup": style_of("post_ln").called("Post-LN, warm-up"),
    "post_ln_init_warmup": style_of("post_ln_init").called("Post-LN-init, warm-up"),
}
PAPER_WIDTH = 512


def update_curve(run: RecordedRun) -> tuple[list[int], list[float]]:
    """Updates, and ||F(x, theta_i) - F(x, theta_0)|| of the decoder after them; UserError if it was not recorded."""
    updates, values = run.record.series("model_update", "decoder")
    if not updates:
        raise UserError(f"{run.folder / 'probes.jsonl'}: has no model_update; record it again with that probe")
    return updates, values


def norm_curve(run: RecordedRun, sublayer: str) -> tuple[list[int], list[float]]:
    """Updates, and the norm that the LayerNorms of all such branches of both stacks read, their mean.

    sublayer: "ffn", "self_attn" or "encoder_attn". UserError if it was not recorded.
    """
    site = re.compile(rf"(encoder|decoder)\.\d+\.{sublayer}")
    found = {}
    for update in run.record.updates():
        values = run.record.rows[update].get("ln_input", {})
        norms = [value for where, value in values.items() if site.fullmatch(where)]
        if norms:
            found[update] = float(np.mean(norms))
    if not found:
        raise UserError(f"{run.folder / 'probes.jsonl'}: has no ln_input of {sublayer}; record it with that probe")
    return list(found), list(found.values())


def gradients(run: RecordedRun) -> tuple[int, dict[int, float]]:
    """The last update with gradient norms, and decoder layer, from 1 -> norm; UserError if there is none."""
    updates = [u for u in run.record.updates() if run.record.rows[u].get("gradient_norm")]
    if not updates:
        raise UserError(f"{run.folder / 'probes.jsonl'}: has no gradient_norm; record it again with that probe")
    values = run.probe(updates[-1], "gradient_norm")
    return updates[-1], {l: values.get(f"decoder.{l}", np.nan) for l in range(1, run.decoder_layers + 1)}


OVER_UPDATES = (  # title, y axis, what is measured, the paper's
    ("(a) accumulated model update", "||F(x,θᵢ) - F(x,θ₀)||", update_curve, paper.FIGURE4_UPDATE),
    ("(b) what LN reads behind FFN", "L2 norm", partial(norm_curve, sublayer="ffn"), paper.FIGURE4_FFN),
    (
        "(c) what LN reads behind self-attention", "L2 norm",
        partial(norm_curve, sublayer="self_attn"), paper.FIGURE4_ATTENTION,
    ),
)  # fmt: skip


def draw(runs: list[RecordedRun], path: Path) -> str:
    """runs: one for each "series" of SERIES, probed at every update.

    UserError for two runs of a series, and for runs of several widths.
    """
    found: dict[str, RecordedRun] = {}
    for run in runs:
        other = found.setdefault(run.choice("series", SERIES), run)
        if other is not run:
            raise UserError(f"{run.folder}: is a second run of series {run.facts['series']}; move one away")
    sheet = Sheet(2, 2, paper.SETTING[4], size=(4.8, 3.4))
    width = _width(runs)
    tables = [_over_updates(sheet, panel, found, width) for panel in range(len(OVER_UPDATES))]
    tables.append(_by_layer(sheet, found))
    sheet.save(path)
    models = ", ".join(sorted({run.depth for run in runs}))
    title = f"the first updates of {models}, width {width}"
    return summary(4, title, tables, [series for series in SERIES if series not in found])


def _width(runs: list[RecordedRun]) -> int:
    """Features of the residual stream; UserError if the runs do not agree."""
    widths = [run.record.header.get("encoder_embed_dim", PAPER_WIDTH) for run in runs]
    if len(set(widths)) > 1:
        raise UserError(f"{runs[0].folder.parent}: runs of widths {', '.join(map(str, widths))}; record them at one")
    return widths[0]


def _over_updates(sheet: Sheet, panel: int, runs: dict[str, RecordedRun], width: int) -> list[list[str]]:
    """One panel and its table at the updates read off the paper.

    The norms are L2 over features, so they grow as sqrt(width): at another width the paper's get an axis of their own.
    """
    title, y, curve, points = OVER_UPDATES[panel]
    scale = (width / PAPER_WIDTH) ** 0.5
    rows = [[title, "update", "measured", "/ sqrt(width)", "paper", "/ sqrt(width)"]]
    for series, style in SERIES.items():
        sheet.paper(panel, paper.FIGURE4_UPDATES, np.multiply(points[series], scale), style)
        measured = {}
        if series in runs:
            updates, values = curve(runs[series])
            sheet.curve(panel, updates, values, style, markersize=2.5)
            measured = dict(zip(updates, values, strict=True))
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
    """Panel (d) and its table."""
    rows = [["(d) gradient norm of decoder layer", "layer", "update", "measured", "paper"]]
    for series, style in SERIES.items():
        points = paper.FIGURE4_GRADIENT[series]
        sheet.paper(3, list(points), list(points.values()), style)
        update, norms = gradients(runs[series]) if series in runs else ("-", {})
        if norms:
            sheet.curve(3, list(norms), list(norms.values()), style)
        for layer in sorted(points.keys() | ({1, max(norms)} if norms else set())):
            rows.append([style.label, str(layer), str(update), number(norms.get(layer)), read_off(points.get(layer))])
    sheet.label(3, "(d) gradient at the last recorded update", "decoder layer", "gradient norm")
    return rows
