"""Draw the figures of `deepnet report --figures`: a function for each turns its runs into a Picture (plots.py).

Such a function raises a UserError, naming the run, if a run lacks what the figure needs. What it needs are facts in
run.json (RecordedRun.facts), in quotes in the docstrings, values of probes, validation losses or scores. A probe
records values by update and address, a place in the model such as "decoder.18" (layers count from 1). A Series holds
its points as x -> y; the module paper has the published values. An N-N model has N encoder and N decoder layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ..core.methods import METHODS, get_method
from ..errors import UserError
from ..files import whole
from ..languages import parse_pair
from ..wording import counted
from . import paper
from .plots import (
    Panel,
    Picture,
    Series,
    Style,
    as_markdown,
    draw,
    format_number,
    magnitude,
    means,
    style_of,
    style_of_setting,
)
from .runs import RecordedRun, folder_of, holds_runs, name_of, runs_of

Runs = list[RecordedRun]
LAYERS = "layers N of an N-N model"
LOSS = "validation loss (bits per token)"
FIGURE4 = {  # fact "series" of a run, and key of paper.FIGURE4_* -> style
    "post_ln_no_warmup": Style("Post-LN, no warm-up", "#CC79A7", "^"),
    "post_ln_warmup": replace(style_of("post_ln"), label="Post-LN, warm-up"),
    "post_ln_init_warmup": replace(style_of("post_ln_init"), label="Post-LN-init, warm-up"),
}
# regular expressions of addresses at which the probe ln_input has values
FFN = r"(encoder|decoder)\.\d+\.ffn"
ATTENTION = r"(encoder|decoder)\.\d+\.self_attn"
FIGURE4_PANELS = (  # title, y axis, probe, regular expression of the addresses to average, the paper's values
    ("(a) accumulated model update", "||F(x,θᵢ) - F(x,θ₀)||", "model_update", "decoder", paper.FIGURE4_UPDATE),
    ("(b) LayerNorm input after the FFN", "L2 norm", "ln_input", FFN, paper.FIGURE4_FFN),
    ("(c) LayerNorm input after self-attention", "L2 norm", "ln_input", ATTENTION, paper.FIGURE4_ATTENTION),
)
PAPER_WIDTH = 512  # of the models in Figure 4
FIGURE7 = {  # fact "panel" of a run -> title of the panel
    "lr": "(a) learning rate",
    "batch": "(b) batches per update",
    "size": "(c) size (width-FFN-heads)",
}
EARLY = 1000  # updates, over which NormFormer's Figure 3 averages; the paper does not say how many
MEASURE = "mean |element| of fc2's gradient"
# Key of paper.NORMFORMER_FIGURE4 -> title of its panel, and the places of a layer in which a model may have the factor,
# as parts of addresses of the probe learned_scale.
SLOTS = {
    "ffn.inner": ("(a) LayerNorm after the activation", ("ffn.inner",)),
    "self_attn.outer": ("(b) LayerNorm after self-attention", ("self_attn.outer",)),
    "self_attn.inner.c": ("(c) factors on heads", ("self_attn.inner.c", "self_attn.outer.c")),
}


def _picture(figure: int, title: str, panels: list[Panel], **fields: Any) -> Picture:
    """Return a figure of the DeepNet paper, with the paper's corpus and model in a note.

    The note also gives the uncertainty of values that were read off the paper's figure. figure: its number; fields:
    further fields of Picture, as columns=2.
    """
    setting = paper.SETTING[figure]
    note = f"In parentheses: values read off the paper's figure ({paper.ERROR[figure]}). Its setting: {setting}."
    return Picture(heading=f"Figure {figure}: {title}", panels=panels, paper=setting, notes=[note], **fields)


def _depths(runs: Iterable[RecordedRun]) -> str:
    """Name the depths of the runs, each once, as "18L-18L, 6L-6L"; "no run" without runs."""
    return ", ".join(sorted({run.depth for run in runs})) or "no run"


def _probed(runs: Runs, probe: str) -> Runs:
    """Return the runs that recorded this probe; raise a UserError if none did. probe: its name, as "gradient_norm"."""
    probed = [run for run in runs if run.updates_with(probe)]
    if not probed:
        raise UserError(runs[0].place.parent, f"no run with {probe}; record one with --deepnet-probe {probe}")
    return probed


def _put(by_key: dict[str, RecordedRun], key: str, run: RecordedRun) -> None:
    """Add a run to a dictionary that has one run for each key; raise a UserError, naming the run, if one is there."""
    if key in by_key:
        raise UserError(
            run.where(), f"this figure has one run of {key}, and {by_key[key].name} is another; move one away"
        )
    by_key[key] = run


def _by_layer(run: RecordedRun, values: dict[str, float], place: str = "") -> dict[int, float]:
    """Return {layer: value of a probe} for the layers, from 1, of the decoder; {} if no value is finite.

    For a model without decoder the layers are those of the encoder. values: address -> value. place: what follows the
    layer in the addresses, as ".ffn.fc2" in "decoder.1.ffn.fc2"; "" for the layer as a whole. A layer whose address is
    missing has NaN.
    """
    stack = "decoder" if run.decoder_layers else "encoder"
    depth = run.decoder_layers or run.encoder_layers

    by_layer = {layer: values.get(f"{stack}.{layer}{place}", math.nan) for layer in range(1, depth + 1)}
    if not any(map(math.isfinite, by_layer.values())):
        return {}
    return by_layer


def _validation(run: RecordedRun, style: Style, epochs: bool = False) -> Series:
    """Return a run's validation losses over updates, or over epochs if `epochs`.

    A diverged run has a cross at its last validation, or at 0 if it had none.
    """
    curve = run.validation
    x_values = curve.epochs if epochs else curve.updates
    points = dict(zip(x_values, curve.losses, strict=True))
    failed = [max(points, default=0)] if run.diverged else []
    return Series(style, points, failed=failed)


def figure3(runs: Runs) -> Picture:
    """Draw Figure 3: Post-LN's gradients vanish towards the bottom, Post-LN-init's do not, and it trains.

    runs: of both methods; those with "part": "profile" have the probe gradient_norm at update 0, those with "part":
    "curve" have validation losses. Panel (a) is the gradient norm by layer, of each method's deepest run, (b) that of
    the last layer by depth, (c) the validation loss by epoch.
    """
    methods = ("post_ln", "post_ln_init")
    profiles: Runs = []
    curves: Runs = []
    for run in runs:
        part = run.fact("part", ("profile", "curve"))
        run.fact("method", methods)  # raises an error for another method
        if part == "profile":
            profiles.append(run)
        else:
            curves.append(run)

    norms = {}  # run -> layer -> gradient norm before the first update
    for run in profiles:
        norms[run] = _by_layer(run, run.probe_values("gradient_norm", 0))
    deepest: dict[str, RecordedRun] = {}  # method -> its deepest run
    for run in sorted(profiles, key=lambda run: run.decoder_layers):
        deepest[run.method] = run  # a deeper one replaces the one before

    from_top = []  # series of panel (a), whose x is the distance from the last layer
    last_layer = []  # series of panel (b)
    losses = []  # series of panel (c)
    for method in methods:
        style = style_of(method)

        # (a) gradient norm by layer
        if method in deepest:
            run = deepest[method]
            lowest = max(1, run.decoder_layers - len(paper.FIGURE3_LAYERS) + 1)  # as many layers as the paper shows
            layers = range(run.decoder_layers, lowest - 1, -1)  # from the top
            # a run of which no norm is finite has none in `norms`
            profile = {distance: norms[run].get(layer, math.nan) for distance, layer in enumerate(layers)}
            from_top.append(Series(style, profile))
        paper_profile = dict(enumerate(reversed(paper.FIGURE3_NORMS[method])))
        from_top.append(Series(style, paper_profile, paper=True))

        # (b) of the last layer, by depth
        own_profiles = [run for run in profiles if run.method == method]
        points = means((run.layers, norms[run].get(run.decoder_layers, math.nan)) for run in own_profiles)
        last_layer.append(Series(style, points))
        last_layer.append(Series(style, {}, paper=True, band=paper.FIGURE3_LAST[method]))

        # (c) validation loss by epoch
        losses += [_validation(run, style, epochs=True) for run in curves if run.method == method]
        # the paper counts epochs from 0
        paper_losses = {epoch + 1: loss for epoch, loss in paper.FIGURE3_LOSS[method].items()}
        losses.append(Series(style, paper_losses, paper=True))

    panels = [
        Panel(f"(a) {_depths(deepest.values())}", x="decoder layer from the top", y="gradient norm", series=from_top),
        Panel("(b) last decoder layer", x=LAYERS, y="gradient norm", series=last_layer),
        Panel(f"(c) {_depths(curves)}", x="epochs", y=LOSS, series=losses),
    ]
    return _picture(3, "gradient norm by layer and by depth, validation loss", panels)


def figure4(runs: Runs) -> Picture:
    """Draw Figure 4: without warm-up Post-LN's output jumps at once, LayerNorms' inputs grow, and gradients vanish.

    runs: at most one for each "series" of FIGURE4, all of one width, with the probes of FIGURE4_PANELS at every update,
    and gradient_norm. An L2 norm over the features grows with the square root of the width; therefore the paper's
    values in (a) to (c) are drawn times sqrt(width of the runs / PAPER_WIDTH).
    """
    by_series: dict[str, RecordedRun] = {}
    for run in runs:
        _put(by_series, run.fact("series", FIGURE4), run)
    width = runs[0].probes.header.get("encoder_embed_dim", PAPER_WIDTH)  # a run without probes is refused below
    scale = (width / PAPER_WIDTH) ** 0.5
    note_of_scale = f", paper's x {scale:.3g}" if scale != 1 else ""  # behind the label of the y axis

    panels = []
    for title, y, probe, addresses, paper_values in FIGURE4_PANELS:
        series = []
        for key, style in FIGURE4.items():
            if key in by_series:
                series.append(Series(style, _mean_by_update(by_series[key], probe, addresses)))
            paper_points = {}  # update -> value, scaled to the width of the runs
            for update, value in zip(paper.FIGURE4_UPDATES, paper_values[key], strict=True):
                paper_points[update] = float(f"{value * scale:.3g}")  # the paper's values have three digits
            series.append(Series(style, paper_points, paper=True))
        panels.append(Panel(title, x="updates made", y=y + note_of_scale, series=series))

    gradients = []  # series of panel (d)
    for key, style in FIGURE4.items():
        if key in by_series:
            (run,) = _probed([by_series[key]], "gradient_norm")  # raises an error without the probe
            last_update = run.updates_with("gradient_norm")[-1]
            norms = run.probe_values("gradient_norm", last_update)
            gradients.append(Series(style, _by_layer(run, norms)))
        gradients.append(Series(style, paper.FIGURE4_GRADIENT[key], paper=True))
    title = "(d) gradient at the last recorded update"
    panels.append(Panel(title, x="decoder layer", y="gradient norm", series=gradients))
    return _picture(4, f"the first updates of {_depths(runs)}, width {width}", panels, columns=2)


def _mean_by_update(run: RecordedRun, probe: str, addresses: str) -> dict[int, float]:
    """Return {update: mean of a probe's values at this update}; raise a UserError if the run did not record the probe.

    addresses: a regular expression of the addresses whose values are averaged.
    """
    _probed([run], probe)  # raises the error
    by_update = {}
    for update in run.updates_with(probe):
        values = run.probe_values(probe, update)
        by_update[update] = fmean(value for address, value in values.items() if re.fullmatch(addresses, address))
    return by_update


def fitted(points: Mapping[float, float], power: bool = False):
    """Fit the line y = A log10 x + B, or the power law log10 y = A log10 x + B, by least squares.

    points: x -> y; power: fit the power law. Returns the result of scipy.stats.linregress, whose attributes are slope
    (A), intercept (B), rvalue (the correlation), and stderr and intercept_stderr (standard errors of A and B).
    """
    from scipy import stats

    values = list(points.values())
    if power:
        values = [math.log10(y) for y in values]
    return stats.linregress([math.log10(x) for x in points], values)


def _with_laws(series: list[Series], power: bool = False) -> tuple[list[Series], list[list[str]]]:
    """Fit a line to each series of two points or more, and return (series to draw, table of the lines).

    The series to draw have the fitted line as `law`; those without points and failures are left out. The table is a
    list of rows of texts, the first its header. power: fit power laws, see fitted.
    """
    drawn = []
    table = [["method", "points", "slope", "standard error", "intercept", "standard error", "R2"]]
    for one in series:
        if len(one.points) > 1:
            line = fitted(one.points, power)
            law = {x: line.slope * math.log10(x) + line.intercept for x in one.points}
            if power:  # the line is of log10 y
                law = {x: 10**exponent for x, exponent in law.items()}
            one = replace(one, law=law)
            table.append(_cells_of_line(one, line))
        if one.points or one.failed:
            drawn.append(one)
    return drawn, table


def _cells_of_line(series: Series, line: Any) -> list[str]:
    """Return the row of a fitted line in the table of _with_laws; line: what `fitted` returned for the series."""
    label = f"{series.style.label}, paper" if series.paper else series.style.label
    has_errors = len(series.points) > 2  # through two points a line goes exactly, and its errors mean nothing
    return [
        label,
        str(len(series.points)),
        f"{line.slope:.2f}",
        format_number(line.stderr if has_errors else None),
        f"{line.intercept:.2f}",
        format_number(line.intercept_stderr if has_errors else None),
        format_number(line.rvalue**2),
    ]


def figure5(runs: Runs) -> Picture:
    """Draw Figure 5: the early model update grows with depth under Post-LN, and far less under DeepNorm.

    runs: both methods at several depths, all with the same "update": U, and the probe model_update after U updates. A
    run whose model update is not finite there counts as failed; one of 0, which has no logarithm, is left out.
    """
    methods = ("post_ln", "deepnorm")
    update = runs[0].facts.get("update")
    if not isinstance(update, int):
        raise UserError(runs[0].where(), f"update {update!r}: must be the number of updates to show")

    series = []
    for method in methods:
        own = [run for run in runs if run.fact("method", methods) == method]  # raises an error for another method
        pairs = []  # (depth, model update of the decoder)
        for run in own:
            model_update = run.probe_values("model_update", update).get("decoder", math.nan)
            pairs.append((run.layers, model_update))
        points = means((layers, value) for layers, value in pairs if math.isfinite(value) and value > 0)
        failed = sorted({layers for layers, value in pairs if not math.isfinite(value)})
        series.append(Series(style_of(method), points, failed=failed))
        series.append(Series(style_of(method), paper.FIGURE5[method], paper=True))

    drawn, slopes = _with_laws(series, power=True)
    y = "model update ||F(x,θᵢ) - F(x,θ₀)||"
    after = f"after {counted(update, 'update')}"
    panel = Panel(after, x=LAYERS, y=y, series=drawn, log="xy")
    return _picture(5, f"model update of the decoder {after}", [panel], tables=[slopes])


def methods_of_panel(norm: str) -> list[str]:
    """Return the methods of one panel of Figure 6: DeepNorm, then the paper's others, then further ones, each by name.

    norm: where the panel's methods have their LayerNorm, "post", "none" or "pre", as Method.norm; DeepNorm is in all.
    """

    def paper_first(name: str) -> tuple[bool, str]:
        return name not in paper.FIGURE6, name

    others = [name for name in METHODS if get_method(name).norm == norm and name != "deepnorm"]
    return ["deepnorm", *sorted(others, key=paper_first)]


def _bleu_by_depth(runs: Runs, method: str, depth: str) -> Series:
    """Return a method's series: the mean BLEU of its runs by depth, and as failures the depths of those that diverged.

    depth: which attribute of RecordedRun is the depth: "layers", N of an N-N model, or "total_layers".
    """
    own = [run for run in runs if run.method == method]
    points = means((getattr(run, depth), run.bleu) for run in own if not run.diverged)
    failed = sorted({getattr(run, depth) for run in own if run.diverged})
    return Series(style_of(method), points, failed=failed)


def figure6(runs: Runs) -> Picture:
    """Draw Figure 6: BLEU by depth, one panel for each place of the LayerNorm, DeepNorm in each panel.

    runs: of N-N models of several methods and depths, with score.json unless they diverged.
    """
    panels = []
    for norm, title in {"post": "(a) Post-LN", "none": "(b) no LN", "pre": "(c) Pre-LN"}.items():
        series = []
        for method in methods_of_panel(norm):
            measured = _bleu_by_depth(runs, method, "layers")
            if measured.points or measured.failed:
                series.append(measured)
            if method in paper.FIGURE6:
                points = dict(zip(paper.FIGURE6_LAYERS, paper.FIGURE6[method], strict=True))
                series.append(Series(measured.style, points, paper=True))
        panels.append(Panel(title, x=LAYERS, y="BLEU", series=series))
    return _picture(6, "BLEU against depth", panels)


def figure7(runs: Runs) -> Picture:
    """Draw Figure 7: validation loss of deep models for several learning rates, batches or widths.

    runs: DeepNorm's, with validation losses; "panel" is the hyper-parameter in which a run differs, a key of FIGURE7,
    and "value" its setting, as "5e-4".
    """
    by_panel: dict[str, dict[str, RecordedRun]] = {name: {} for name in FIGURE7}  # panel -> value -> run
    for run in runs:
        panel = run.fact("panel", FIGURE7)
        value = run.facts.get("value")
        if value is None:
            raise UserError(run.where(), f"value is missing, the run's setting in the panel {panel}")
        _put(by_panel[panel], str(value), run)

    panels = []
    for name, title in FIGURE7.items():
        by_value = by_panel[name]
        paper_losses = paper.FIGURE7[name]
        series = []
        for rank, value in enumerate(sorted({*by_value, *paper_losses}, key=magnitude)):
            style = style_of_setting(rank, value)
            if value in by_value:
                series.append(_validation(by_value[value], style))
            if value in paper_losses:
                points = dict(zip(paper.FIGURE7_UPDATES, paper_losses[value], strict=True))
                series.append(Series(style, points, paper=True))
        panels.append(Panel(f"{title}; {_depths(by_value.values())}", x="updates", y=LOSS, series=series))
    return _picture(7, "validation loss", panels)


def figure8(runs: Runs) -> Picture:
    """Draw Figure 8: BLEU by the logarithm of depth, encoder and decoder layers together, with L(d) = A log10 d + B.

    runs: of several methods and depths, with score.json unless they diverged. The line is fitted by least squares.
    """
    methods = dict.fromkeys([*paper.FIGURE8, *sorted(run.method for run in runs)])  # each once, the paper's first
    series = []
    for method in methods:
        measured = _bleu_by_depth(runs, method, "total_layers")
        series.append(measured)
        series.append(Series(measured.style, paper.FIGURE8.get(method, {}), paper=True))

    drawn, fits = _with_laws(series)
    x = "layers d, encoder and decoder together"
    panel = Panel("L(d) = A log10 d + B", x=x, y="BLEU", series=drawn, log="x")
    return _picture(8, "BLEU against the logarithm of depth", [panel], tables=[fits])


def figure10(runs: Runs) -> Picture:
    """Draw Figures 9 and 10: BLEU into each language on Flores-101, one line for each run.

    The paper has a heat map instead, with a cell for each pair of source and target language. runs: those of Table 3,
    with the test set "flores" in score.json.
    """
    names = [f"{run.facts.get('system', run.name)} {run.depth}" for run in runs]  # "system": somebody else's model
    bleu: dict[str, dict[str, float]] = {}  # name of a line -> target language -> mean over source languages
    for run, name in zip(runs, names, strict=True):
        flores = (run.score or {}).get("sets", {}).get("flores", {})
        scores = {direction: score["bleu"] for direction, score in flores.get("directions", {}).items()}
        if not scores:
            raise UserError(run.where("score"), "has no test set flores; translate that and score the run again")
        pairs = []  # (target language, BLEU), one for each source language
        for direction, value in scores.items():
            _, target = parse_pair(run.where("score"), direction)
            pairs.append((target, value))
        if names.count(name) > 1:  # the runs' addresses tell them apart
            name += f" ({run.address})"
        bleu[name] = means(pairs)

    def best_first(language: str) -> tuple[float, str]:
        """Return the sort key of a language: its highest BLEU in any run."""
        highest = max(by_language.get(language, 0) for by_language in bleu.values())  # 0 for a run without it
        return -highest, language  # of equal BLEU by name, so that the same runs give the same picture

    languages = sorted(set().union(*bleu.values()), key=best_first)
    series = []
    for rank, (name, by_language) in enumerate(bleu.items()):
        points = {}  # place of the language on the x axis -> BLEU
        for place, language in enumerate(languages, 1):
            if language in by_language:
                points[place] = by_language[language]
        series.append(Series(style_of_setting(rank, name), points))

    x = "target languages, the best first"
    panel = Panel("mean over source languages", x=x, y="BLEU", series=series)
    note = "The paper draws its 7,482 directions as colours. Their mean spBLEU: 13.6 for M2M-100, 18.6 for DeepNet."
    return Picture("Figures 9 and 10: BLEU on Flores-101 by language", [panel], notes=[note])


def normformer3(runs: Runs) -> Picture:
    """Draw NormFormer's Figure 3: at first Pre-LN's lowest layers get the largest gradients, Post-LN's the smallest.

    The gradient is that of the second feed-forward matrix (fc2). The paper takes its L1 norm; the probe gradient_l1
    records the L1 norm divided by the number of elements. Panel (a) is the mean of this over the first EARLY updates,
    by layer; (b) the ratio of the first layer's to the last layer's, by update. runs: those without the probe are left
    out.
    """
    profiles = []  # series of panel (a)
    ratios = []  # series of panel (b)
    for run in _probed(runs, "gradient_l1"):
        norms = {}  # update -> layer -> norm; {} for an update at which no norm was finite
        for update in run.updates_with("gradient_l1"):
            norms[update] = _by_layer(run, run.probe_values("gradient_l1", update), ".ffn.fc2")
        early = [by_layer for update, by_layer in norms.items() if update <= EARLY and by_layer]
        if not early:
            raise UserError(run.where("probes"), f"has no finite gradient_l1 in the first {EARLY:,} updates")

        profile = {}  # layer -> mean over the early updates
        for layer in early[0]:
            profile[layer] = fmean(by_layer[layer] for by_layer in early if layer in by_layer)
        ratio = {}  # update -> first layer over last layer
        for update, by_layer in norms.items():
            first = by_layer.get(1)
            last = by_layer.get(run.decoder_layers or run.encoder_layers)
            if first and last:  # there is no ratio where a norm is missing or zero
                ratio[update] = first / last
        profiles.append(Series(style_of(run.method), profile))
        ratios.append(Series(style_of(run.method), ratio))

    panels = [
        Panel(f"(a) mean of the first {EARLY:,} updates", x="layer", y=MEASURE, series=profiles, log="y"),
        Panel("(b) first layer / last layer", x="updates made", y="ratio", series=ratios, log="y"),
    ]
    quotes = "; ".join(f"{style_of(method).label} {words}" for method, words in paper.NORMFORMER_FIGURE3.items())
    note = f"The paper's panel (b) cannot be read. Its text says: {quotes}. Its setting: {paper.NORMFORMER_SETTING}."
    return Picture(f"NormFormer, Figure 3: {MEASURE} by layer", panels, notes=[note])


def normformer4(runs: Runs) -> Picture:
    """Draw NormFormer's Figure 4: the learned gains of its LayerNorms and its factors on heads, layer by layer.

    runs: with the probe learned_scale, whose values at the last update are drawn; if some are of NormFormer, only
    those. A line is the median over the elements of a layer's gain, or over its heads; the band around it reaches from
    the least value to the largest.
    """
    normformers = [run for run in runs if run.method == "normformer"]
    probed = _probed(normformers or runs, "learned_scale")

    panels = []
    for slot, (title, places) in SLOTS.items():
        series = [Series(style_of("normformer"), {}, paper=True, band=paper.NORMFORMER_FIGURE4[slot])]
        for run in probed:
            last_update = run.updates_with("learned_scale")[-1]
            values = run.probe_values("learned_scale", last_update)
            for place in places:
                median = _by_layer(run, values, f".{place}.median")
                low = _by_layer(run, values, f".{place}.min")
                high = _by_layer(run, values, f".{place}.max")
                if median:
                    band = {layer: (low[layer], high[layer]) for layer in median}
                    series.append(Series(style_of(run.method), median, band=band))
        panels.append(Panel(title, x="layer", y="median, least to largest", series=series))

    note = (
        f"In parentheses: the paper's values ({paper.NORMFORMER_ERROR}). They are medians in (a) and (b), and the "
        f"smallest and largest factor in (c). Its setting: {paper.NORMFORMER_SETTING}."
    )
    heading = "NormFormer, Figure 4: learned scales by layer"
    return Picture(heading, panels, paper=paper.NORMFORMER_SETTING, notes=[note])


def training_losses(runs: Runs) -> Picture:
    """Draw the training loss over updates, with a panel for each depth, and in it a line for each "variant".

    Runs without a variant have a line for each method. A line is the mean over seeds; runs that the trainer stopped
    have a cross at their last update.
    """

    def language_models_first(run: RecordedRun) -> tuple:
        """Return the sort key of a run: kind of model, then depth, then variant; a language model has no encoder."""
        return run.encoder_layers > 0, run.decoder_layers, run.facts.get("variant", "")

    groups: dict[str, dict[str, Runs]] = {}  # depth, as "18L-18L" -> variant or method -> runs
    for run in sorted(runs, key=language_models_first):
        label = run.facts.get("variant") or run.method
        groups.setdefault(run.depth, {}).setdefault(label, []).append(run)

    labels: list[str] = []  # each once; its index gives a label the same style in all panels
    for by_label in groups.values():
        labels += [label for label in by_label if label not in labels]

    panels = []
    for depth, by_label in groups.items():
        series = []
        for label, own in by_label.items():
            pairs: list[tuple[float, float]] = []  # (update, loss) of all seeds
            for run in own:
                pairs += zip(run.log.updates, run.log.losses, strict=True)
            failed = [run.log.updates[-1] for run in own if run.ended_in_nan or run.stuck]
            style = style_of_setting(labels.index(label), style_of(label).label)
            series.append(Series(style, means(pairs), failed=failed))
        panels.append(Panel(depth, x="updates", y="training loss (bits per token)", series=series))
    return Picture("Training loss by depth", panels, columns=2)


# Figure -> the function that draws it. A number is that of a figure of the DeepNet paper.
EVERY: dict[int | str, Callable[[Runs], Picture]] = {
    3: figure3,
    4: figure4,
    5: figure5,
    6: figure6,
    7: figure7,
    8: figure8,
    10: figure10,
    "depth": training_losses,
    "normformer3": normformer3,
    "normformer4": normformer4,
    "inverted_gain": training_losses,
}


def parse_figures(runs: Path, only: str | None) -> list[int | str]:
    """Return the figures, keys of EVERY, that `only` names; if it is None, all that have runs.

    runs: RUNS, the folder that holds the folders of all experiments; only: figures as "4,5,normformer4". Raises a
    UserError for an unknown figure, and, if `only` is None, where no figure has runs.
    """
    if only is not None:
        known = {str(figure): figure for figure in EVERY}
        words = [word.strip() for word in only.split(",")]
        for word in words:
            if word not in known:
                raise UserError(f"--figures {word}", f"no such figure; choose some of {','.join(known)}")
        return [known[word] for word in words]

    figures = [figure for figure in EVERY if holds_runs(runs / folder_of(figure))]
    if not figures:
        names = ", ".join(dict.fromkeys(map(folder_of, EVERY)))
        raise UserError(runs, f"holds none of {names}; record runs first")
    return figures


def redraw(runs: Path, figure: int | str, out: Path) -> str:
    """Write the figure into the folder `out` as PNG and as Markdown, and return the Markdown text.

    runs: RUNS, the folder that holds the folders of all experiments; figure: a key of EVERY. Raises a UserError if none
    of its runs is over, or one lacks what the figure needs.
    """
    picture = EVERY[figure](runs_of(runs, figure))
    markdown = as_markdown(picture)

    path = out / name_of(figure)
    out.mkdir(parents=True, exist_ok=True)
    draw(picture, path.with_suffix(".png"))
    with whole(path.with_suffix(".md")) as part:
        part.write_text(markdown, encoding="utf-8")
    return markdown
