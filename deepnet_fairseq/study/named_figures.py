"""Figures of NormFormer and of runs of our own; all figures by their names, and how they are drawn again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median

from ..core.probes.learned_scale import STATISTICS
from ..errors import UserError
from ..files import whole
from . import paper
from .paper_figures import figure3, figure4, figure5, figure6, figure7, figure8, figure10
from .plots import Panel, Picture, Series, Style, draw, style_of, style_of_setting, text
from .runs import RecordedRun, folder_of, holds_runs, name_of, runs_of, unfinished

Runs = list[RecordedRun]
EARLY = 1000  # updates that NormFormer's Figure 3 is the mean of; the paper does not say how many
MEASURE = "mean |element| of fc2's gradient"
SLOTS = {  # of NormFormer's Figure 4 -> title, and the slots where a model may have it
    "ffn.inner": ("(a) LayerNorm behind the activation", ("ffn.inner",)),
    "self_attn.outer": ("(b) LayerNorm behind self-attention", ("self_attn.outer",)),
    "self_attn.inner.c": ("(c) factors on heads", ("self_attn.inner.c", "self_attn.outer.c")),
}
INVERTED = {  # "variant" of the runs of scripts/inverted_gain.sh
    "": Style("DeepNorm", "#D55E00", "o"),
    "fixed_alpha": Style("alpha of 32 layers", "#E69F00", "^"),
    "inverted_gain": Style("gain inverted", "#0072B2", "v"),
    "inverted_gain_fixed_alpha": Style("gain inverted, alpha of 32 layers", "#CC79A7", ">"),
}


def _probed(runs: Runs, probe: str, what: str) -> dict[RecordedRun, Style]:
    """Return the runs that recorded this probe; several of one method are told apart by their names."""
    found = [run for run in runs if run.probed(probe)]
    if not found:
        raise UserError(f"{runs[0].place.parent}: no {what} with {probe}; record one with --deepnet-probe {probe}")
    count = Counter(run.method for run in found)
    styles = {run: style_of(run.method) for run in found}
    several = [run for run in found if count[run.method] > 1]
    return styles | {
        run: style_of_setting(rank, f"{styles[run].label}, {run.name}") for rank, run in enumerate(several)
    }


def _along(run: RecordedRun, values: dict[str, float], place: str) -> dict[int, float]:
    """Return layer -> the value at "STACK.LAYER.place", of the decoder, or of the encoder of a model without."""
    stack, depth = ("decoder", run.decoder_layers) if run.decoder_layers else ("encoder", run.encoder_layers)
    found = {layer: values.get(f"{stack}.{layer}.{place}", math.nan) for layer in range(1, depth + 1)}
    return found if any(map(math.isfinite, found.values())) else {}


def normformer3(runs: Runs) -> Picture:
    """Figure 3: early in training Pre-LN's first layers get the largest gradients, and Post-LN's the smallest.

    The paper takes the L1 norm of the gradient of the second feed-forward matrix. runs: probed with gradient_l1.
    """
    profiles, ratios = [], []
    for run, style in _probed(runs, "gradient_l1", "run").items():
        norms = {u: _along(run, run.probe(u, "gradient_l1"), "ffn.fc2") for u in run.probed("gradient_l1")}
        early = [norms[update] for update in norms if update <= EARLY]
        if not early:
            raise UserError(f"{run.where('probes')}: has no gradient_l1 in the first {EARLY:,} updates")
        profiles.append(Series(style, {layer: fmean(one[layer] for one in early) for layer in early[0]}))
        ratios.append(Series(style, {update: one[1] / one[max(one)] for update, one in norms.items()}))
    said = "; ".join(f"{style_of(method).label} {words}" for method, words in paper.NORMFORMER_FIGURE3.items())
    panels = [
        Panel(f"(a) mean of the first {EARLY:,} updates", "layer", MEASURE, profiles, log="y"),
        Panel("(b) first layer / last layer", "updates made", "ratio", ratios, log="y"),
    ]
    note = f"paper: {paper.NORMFORMER_SETTING}; its text on the ratio of (b), whose numbers cannot be read: {said}"
    return Picture(f"NormFormer, Figure 3: {MEASURE} by layer", panels, notes=[note])


def normformer4(runs: Runs) -> Picture:
    """Figure 4: what the gains of its LayerNorms and its factors on heads have become, layer by layer.

    runs: of NormFormer, probed with learned_scale; each is drawn at its last probed update.
    """
    found = _probed([r for r in runs if r.method == "normformer"] or runs, "learned_scale", "run of NormFormer")
    panels = []
    for slot, (title, places) in SLOTS.items():
        series = [Series(Style("NormFormer", "#0072B2", "D"), {}, paper=True, band=paper.NORMFORMER_FIGURE4[slot])]
        for run, style in found.items():
            values = run.probe(run.probed("learned_scale")[-1], "learned_scale")
            for place in places:
                middle, low, high = (_along(run, values, f"{place}.{name}") for name in STATISTICS)
                if middle:
                    band = {layer: (low[layer], high[layer]) for layer in middle}
                    series.append(Series(style, middle, band=band))
        panels.append(Panel(title, "layer", "median, least to largest", series))
    note = (
        f"paper, in parentheses: {paper.NORMFORMER_SETTING}, Figure 4, {paper.NORMFORMER_ERROR}; medians in (a) and "
        "(b), least and largest factor in (c)"
    )
    heading = "NormFormer, Figure 4: learned scales by layer"
    return Picture(heading, panels, paper.NORMFORMER_SETTING, notes=[note])


def training_losses(groups: dict[str, Runs], heading: str) -> Picture:
    """A panel a group, by its name: the training loss of each run in its method's colour."""
    panels = []
    for name, runs in groups.items():
        series = []
        for run in runs:
            log, style = run.log, style_of(run.method)
            failed = [log.updates[-1]] if run.ended_in_nan or run.stuck else []
            series.append(Series(style, dict(zip(log.updates, log.losses, strict=True)), failed=failed))
        panels.append(Panel(name, "updates", "training loss (bits per token)", series))
    return Picture(heading, panels, columns=2)


def depth(runs: Runs) -> Picture:
    """Training loss of N-N models, several methods at each depth, a panel each."""
    groups: dict[str, Runs] = {}
    for run in sorted(runs, key=lambda run: run.layers):
        groups.setdefault(f"{run.layers} encoder + {run.layers} decoder layers", []).append(run)
    return training_losses(groups, "Training loss by depth")


def by_variant(runs: Runs) -> dict[tuple[str, str], Runs]:
    """Return (depth, variant) -> its runs: language models by depth, then translation, each in INVERTED's order.

    UserError, naming the run, for a variant that is none of them.
    """
    order = list(INVERTED)

    def key(run: RecordedRun) -> tuple:
        return run.encoder_layers > 0, run.decoder_layers, order.index(run.choice("variant", order)), run.seed or 0

    found: dict[tuple[str, str], Runs] = {}
    for run in sorted(runs, key=key):
        found.setdefault((run.depth, run.facts["variant"]), []).append(run)
    return found


def inverted_gain(runs: Runs) -> Picture:
    """Training loss over updates by model and variant: the median of the seeds, their range shaded."""
    panels: dict[str, Panel] = {}
    for (model, variant), found in by_variant(runs).items():
        kind = "translation" if "-" in model else "language model"
        panel = panels.setdefault(model, Panel(f"{model}, {kind}", "updates", "training loss (bits per token)", []))
        rows = dict(zip(found[0].log.updates, zip(*(run.log.losses for run in found), strict=False), strict=False))
        band = {update: (min(losses), max(losses)) for update, losses in rows.items()} if len(found) > 1 else {}
        middle = {update: median(losses) for update, losses in rows.items()}
        panel.series.append(Series(INVERTED[variant], middle, band=band))
    return Picture("DeepNorm with its gain inverted", list(panels.values()), columns=2)


FIGURES = {3: figure3, 4: figure4, 5: figure5, 6: figure6, 7: figure7, 8: figure8}  # of the DeepNet paper, by number
EVERY: dict[int | str, Callable[[Runs], Picture]] = FIGURES | {
    10: figure10, "depth": depth, "normformer3": normformer3, "normformer4": normformer4,
    "inverted_gain": inverted_gain,
}  # fmt: skip


def chosen(runs: Path, only: str | None) -> list[int | str]:
    """Return the figures asked for by "4,5,normformer4", or all that have a folder below `runs`.

    UserError for a figure that is none, and where there is no folder.
    """
    if not runs.is_dir():
        raise UserError(f"{runs}: no such folder; name the one that holds figure3, figure4 and so on")
    if only is not None:
        known = {str(figure): figure for figure in EVERY}
        words = [word.strip() for word in only.split(",")]
        for word in words:
            if word not in known:
                raise UserError(f"--only {word}: no such figure; choose some of {','.join(known)}")
        return [known[word] for word in words]
    found = [figure for figure in EVERY if holds_runs(runs / folder_of(figure))]
    if not found:
        names = ", ".join(dict.fromkeys(map(folder_of, EVERY)))
        raise UserError(f"{runs}: holds none of {names}; record runs first")
    return found


def redraw(runs: Path, figure: int | str, out: Path) -> str:
    """Write the figure's PNG in `out` and, with the text that it returns, a Markdown file of the same name.

    UserError if none of its runs is finished, or one lacks what the figure needs.
    """
    picture, left_out, path = EVERY[figure](runs_of(runs, figure)), unfinished(runs, figure), out / name_of(figure)
    said = text(picture) + (f"\nnot finished, left out: {', '.join(left_out)}\n" if left_out else "")
    out.mkdir(parents=True, exist_ok=True)
    draw(picture, path.with_suffix(".png"))
    with whole(path.with_suffix(".md")) as part:
        part.write_text(said, encoding="utf-8")
    return said
