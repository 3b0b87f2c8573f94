"""Draw the figures of `deepnet report --figures`: a function for each turns its runs into a Picture.

A function raises a UserError, naming the run, where one lacks what the figure needs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from ..core.methods import METHODS, get_method
from ..core.probes.learned_scale import STATISTICS
from ..errors import UserError
from ..files import whole
from ..languages import parse_pair
from . import paper
from .plots import Panel, Picture, Series, Style, draw, magnitude, means, number, style_of, style_of_setting, text
from .runs import RecordedRun, folder_of, holds_runs, name_of, runs_of

Runs = list[RecordedRun]
LAYERS = "layers N of an N-N model"
LOSS = "validation loss (bits per token)"
FIGURE4 = {  # its series
    "post_ln_no_warmup": Style("Post-LN, no warm-up", "#CC79A7", "^"),
    "post_ln_warmup": replace(style_of("post_ln"), label="Post-LN, warm-up"),
    "post_ln_init_warmup": replace(style_of("post_ln_init"), label="Post-LN-init, warm-up"),
}
FFN, ATTENTION = (rf"(encoder|decoder)\.\d+\.{branch}" for branch in ("ffn", "self_attn"))
FIGURE4_PANELS = (  # title, y axis, probe, addresses, the paper's values
    ("(a) accumulated model update", "||F(x,θᵢ) - F(x,θ₀)||", "model_update", "decoder", paper.FIGURE4_UPDATE),
    ("(b) LayerNorm input after the FFN", "L2 norm", "ln_input", FFN, paper.FIGURE4_FFN),
    ("(c) LayerNorm input after self-attention", "L2 norm", "ln_input", ATTENTION, paper.FIGURE4_ATTENTION),
)
PAPER_WIDTH = 512  # of the models in Figure 4
FIGURE7 = {"lr": "(a) learning rate", "batch": "(b) batches per update", "size": "(c) size (width-FFN-heads)"}
EARLY = 1000  # first updates that NormFormer's Figure 3 averages; the paper does not say how many
MEASURE = "mean |element| of fc2's gradient"
SLOTS = {  # panel of NormFormer's Figure 4 -> title, and the slots in which a model may have the factor
    "ffn.inner": ("(a) LayerNorm after the activation", ("ffn.inner",)),
    "self_attn.outer": ("(b) LayerNorm after self-attention", ("self_attn.outer",)),
    "self_attn.inner.c": ("(c) factors on heads", ("self_attn.inner.c", "self_attn.outer.c")),
}


def _picture(figure: int, title: str, panels: list[Panel], **more) -> Picture:
    """Return a figure of the DeepNet paper."""
    setting = paper.SETTING[figure]
    notes = [f"In parentheses: values read off the paper's figure ({paper.ERROR[figure]}). Its setting: {setting}."]
    return Picture(f"Figure {figure}: {title}", panels, setting, notes=notes, **more)


def _depths(runs: Iterable[RecordedRun]) -> str:
    return ", ".join(sorted({run.depth for run in runs})) or "no run"


def _probed(runs: Runs, probe: str) -> Runs:
    """Return the runs that recorded this probe; raise UserError if none did."""
    probed = [run for run in runs if run.probed(probe)]
    if not probed:
        raise UserError(f"{runs[0].place.parent}: no run with {probe}; record one with --deepnet-probe {probe}")
    return probed


def _along(run: RecordedRun, values: dict[str, float], place: str = "") -> dict[int, float]:
    """Return layer -> value at "STACK.LAYER" + place, of the decoder, or of the encoder of a model without decoder."""
    stack, depth = ("decoder", run.decoder_layers) if run.decoder_layers else ("encoder", run.encoder_layers)
    by_layer = {layer: values.get(f"{stack}.{layer}{place}", math.nan) for layer in range(1, depth + 1)}
    return by_layer if any(map(math.isfinite, by_layer.values())) else {}


def _validation(run: RecordedRun, style: Style, epochs: bool = False) -> Series:
    curve = run.validation
    points = dict(zip(curve.epochs if epochs else curve.updates, curve.losses, strict=True))
    return Series(style, points, failed=[max(points, default=0)] if run.diverged else [])


def figure3(runs: Runs) -> Picture:
    """Draw Figure 3: Post-LN's gradients vanish towards the bottom, Post-LN-init's do not, and it trains.

    runs: "part": "profile" with probes of update 0, or "curve" with validation losses.
    """
    methods = ("post_ln", "post_ln_init")
    parts = {run: (run.choice("part", ("profile", "curve")), run.choice("method", methods)) for run in runs}
    norms = {run: _along(run, run.probe(0, "gradient_norm")) for run in runs if parts[run][0] == "profile"}
    deepest = {run.method: run for run in sorted(norms, key=lambda run: run.decoder_layers)}
    profile, last, loss = [], [], []
    for method in methods:
        style = style_of(method)
        if run := deepest.get(method):
            layers = range(run.decoder_layers, max(0, run.decoder_layers - len(paper.FIGURE3_LAYERS)), -1)
            profile.append(Series(style, {k: norms[run][layer] for k, layer in enumerate(layers)}))
        profile.append(Series(style, dict(enumerate(reversed(paper.FIGURE3_NORMS[method]))), paper=True))
        points = means((run.layers, norms[run][run.decoder_layers]) for run in norms if run.method == method)
        last += [Series(style, points), Series(style, {}, paper=True, band=paper.FIGURE3_LAST[method])]
        loss += [_validation(run, style, epochs=True) for run in runs if parts[run] == ("curve", method)]
        theirs = {epoch + 1: value for epoch, value in paper.FIGURE3_LOSS[method].items()}
        loss.append(Series(style, theirs, paper=True))
    curves = [run for run in runs if parts[run][0] == "curve"]
    panels = [
        Panel(f"(a) {_depths(deepest.values())}", "decoder layer from the top", "gradient norm", profile),
        Panel("(b) last decoder layer", LAYERS, "gradient norm", last),
        Panel(f"(c) {_depths(curves)}", "epochs", LOSS, loss),
    ]
    return _picture(3, "gradient norm by layer and by depth, validation loss", panels)


def figure4(runs: Runs) -> Picture:
    """Draw Figure 4: without warm-up Post-LN's output jumps at once, LayerNorms' inputs grow, and gradients vanish.

    runs: one for each "series" of FIGURE4, of one width, probed at every update. The norms are L2 over features, so the
    paper's are drawn times the square root of the runs' width over its own.
    """
    by_series = {run.choice("series", FIGURE4): run for run in runs}
    width = runs[0].record.header.get("encoder_embed_dim", PAPER_WIDTH)
    scale = (width / PAPER_WIDTH) ** 0.5
    scaled = f", paper's x {scale:.3g}" if scale != 1 else ""
    panels = []
    for title, y, probe, addresses, theirs in FIGURE4_PANELS:
        series = []
        for key, style in FIGURE4.items():
            if key in by_series:
                (run,) = _probed([by_series[key]], probe)
                rows = {update: run.probe(update, probe).items() for update in run.probed(probe)}
                values = {u: fmean(v for at, v in row if re.fullmatch(addresses, at)) for u, row in rows.items()}
                series.append(Series(style, values))
            pairs = zip(paper.FIGURE4_UPDATES, theirs[key], strict=True)
            series.append(Series(style, {update: float(f"{v * scale:.3g}") for update, v in pairs}, paper=True))
        panels.append(Panel(title, "updates made", y + scaled, series))
    last = []
    for key, style in FIGURE4.items():
        if key in by_series:
            (run,) = _probed([by_series[key]], "gradient_norm")
            last.append(Series(style, _along(run, run.probe(run.probed("gradient_norm")[-1], "gradient_norm"))))
        last.append(Series(style, paper.FIGURE4_GRADIENT[key], paper=True))
    panels.append(Panel("(d) gradient at the last recorded update", "decoder layer", "gradient norm", last))
    return _picture(4, f"the first updates of {_depths(runs)}, width {width}", panels, columns=2)


def fitted(points: Mapping[float, float], power: bool = False):
    """Fit y = A log10 x + B, or the power law log10 y = A log10 x + B, by scipy's linregress: slope A, intercept B."""
    from scipy import stats

    values = [math.log10(y) if power else y for y in points.values()]
    return stats.linregress([math.log10(x) for x in points], values)


def _with_laws(series: list[Series], power: bool = False) -> tuple[list[Series], list]:
    """Return the series with fitted lines where they have two points or more, and a table of the lines."""
    drawn, fits = [], [["method", "points", "slope", "standard error", "intercept", "standard error", "R2"]]
    for one in series:
        if len(one.points) > 1:
            line = fitted(one.points, power)
            law = {x: line.slope * math.log10(x) + line.intercept for x in one.points}
            one = replace(one, law={x: 10**y for x, y in law.items()} if power else law)
            errors = [number(e if len(law) > 2 else None) for e in (line.stderr, line.intercept_stderr)]
            cells = [f"{line.slope:.2f}", errors[0], f"{line.intercept:.2f}", errors[1], number(line.rvalue**2)]
            fits.append([one.style.label + ", paper" * one.paper, str(len(one.points)), *cells])
        if one.points or one.failed:
            drawn.append(one)
    return drawn, fits


def figure5(runs: Runs) -> Picture:
    """Draw Figure 5: the early model update grows with depth under Post-LN, and far less under DeepNorm.

    runs: both methods at several depths, "update": U, probed after U updates, the same number for all.
    """
    methods, update, series = ("post_ln", "deepnorm"), runs[0].facts.get("update", 0), []
    for method in methods:
        own = [run for run in runs if run.choice("method", methods) == method]
        pairs = [(run.layers, run.probe(update, "model_update").get("decoder", math.nan)) for run in own]
        points = means((n, value) for n, value in pairs if math.isfinite(value) and value > 0)
        failed = sorted({n for n, value in pairs if not math.isfinite(value)})
        series.append(Series(style_of(method), points, failed=failed))
        series.append(Series(style_of(method), paper.FIGURE5[method], paper=True))
    series, slopes = _with_laws(series, power=True)
    panel = Panel(f"after {update} updates", LAYERS, "model update ||F(x,θᵢ) - F(x,θ₀)||", series, log="xy")
    return _picture(5, f"model update of the decoder after {update} updates", [panel], tables=[slopes])


def methods_of_panel(norm: str) -> list[str]:
    """Return the methods of one panel of Figure 6: DeepNorm, those of the paper, then others."""
    rest = [name for name in METHODS if get_method(name).norm == norm and name != "deepnorm"]
    return ["deepnorm", *sorted(rest, key=lambda name: (name not in paper.FIGURE6, name))]


def _scores(runs: Runs, method: str, layers: str) -> Series:
    """Return mean BLEU over layers of the runs that did not diverge."""
    own = [run for run in runs if run.method == method]
    points = means((getattr(run, layers), run.bleu) for run in own if not run.diverged)
    return Series(style_of(method), points, failed=sorted({getattr(run, layers) for run in own if run.diverged}))


def figure6(runs: Runs) -> Picture:
    """Draw Figure 6: BLEU by depth, one panel for each place of the LayerNorm, DeepNorm in each panel.

    runs: methods at several depths, with score.json, or diverged.
    """
    panels = []
    for norm, title in {"post": "(a) Post-LN", "none": "(b) no LN", "pre": "(c) Pre-LN"}.items():
        series = []
        for method in methods_of_panel(norm):
            one = _scores(runs, method, "layers")
            series += [one] if one.points or one.failed else []
            if method in paper.FIGURE6:
                points = dict(zip(paper.FIGURE6_LAYERS, paper.FIGURE6[method], strict=True))
                series.append(Series(one.style, points, paper=True))
        panels.append(Panel(title, LAYERS, "BLEU", series))
    return _picture(6, "BLEU against depth", panels)


def figure7(runs: Runs) -> Picture:
    """Draw Figure 7: validation loss of deep models for several learning rates, batches or widths.

    runs: "panel": "lr", "batch" or "size", "value": the setting; validation losses.
    """
    by_setting = {(run.choice("panel", FIGURE7), str(run.facts.get("value"))): run for run in runs}
    panels = []
    for name, title in FIGURE7.items():
        theirs, mine = paper.FIGURE7[name], {value: run for (panel, value), run in by_setting.items() if panel == name}
        series = []
        for rank, value in enumerate(sorted({*mine, *theirs}, key=magnitude)):
            style = style_of_setting(rank, value)
            series += [_validation(mine[value], style)] if value in mine else []
            if value in theirs:
                points = dict(zip(paper.FIGURE7_UPDATES, theirs[value], strict=True))
                series.append(Series(style, points, paper=True))
        panels.append(Panel(f"{title}; {_depths(mine.values())}", "updates", LOSS, series))
    return _picture(7, "validation loss", panels)


def figure8(runs: Runs) -> Picture:
    """Draw Figure 8: BLEU by the logarithm of depth, encoder and decoder layers together, with L(d) = A log10 d + B.

    runs: methods at several depths, with score.json, or diverged.
    """
    series = []
    for method in dict.fromkeys([*paper.FIGURE8, *sorted(run.method for run in runs)]):
        mine = _scores(runs, method, "total_layers")
        series += [mine, Series(mine.style, paper.FIGURE8.get(method, {}), paper=True)]
    series, fits = _with_laws(series)
    panel = Panel("L(d) = A log10 d + B", "layers d, encoder and decoder together", "BLEU", series, log="x")
    return _picture(8, "BLEU against the logarithm of depth", [panel], tables=[fits])


def figure10(runs: Runs) -> Picture:
    """Draw Figures 9 and 10: BLEU into each language on Flores-101, one line a run.

    The paper has a heat map, one cell a direction. runs: of Table 3, with the test set "flores" in score.json.
    """
    bleu: dict[str, dict[str, float]] = {}
    for run in runs:
        sets = (run.score or {}).get("sets", {})
        scores = {name: one["bleu"] for name, one in sets.get("flores", {}).get("directions", {}).items()}
        if not scores:
            raise UserError(f"{run.where('score')}: has no test set flores; translate that and score the run again")
        name = f"{run.facts.get('system', run.name)} {run.depth}"
        bleu[name] = means((parse_pair(run.where("score"), one)[1], value) for one, value in scores.items())
    languages = sorted(set().union(*bleu.values()), key=lambda one: -max(into.get(one, 0) for into in bleu.values()))
    series = [
        Series(style_of_setting(rank, name), {k: into[one] for k, one in enumerate(languages, 1) if one in into})
        for rank, (name, into) in enumerate(bleu.items())
    ]
    panel = Panel("mean over source languages", "target languages, the best first", "BLEU", series)
    note = "The paper draws its 7,482 directions as colours. Their mean spBLEU: 13.6 for M2M-100, 18.6 for DeepNet."
    return Picture("Figures 9 and 10: BLEU on Flores-101 by language", [panel], notes=[note])


def normformer3(runs: Runs) -> Picture:
    """Draw NormFormer's Figure 3: at first Pre-LN's lowest layers get the largest gradients, Post-LN's the smallest.

    The paper takes the L1 norm of the gradient of the second feed-forward matrix. runs: probed with gradient_l1.
    """
    profiles, ratios = [], []
    for run in _probed(runs, "gradient_l1"):
        norms = {u: _along(run, run.probe(u, "gradient_l1"), ".ffn.fc2") for u in run.probed("gradient_l1")}
        early = [norms[update] for update in norms if update <= EARLY]
        if not early:
            raise UserError(f"{run.where('probes')}: has no gradient_l1 in the first {EARLY:,} updates")
        style = style_of(run.method)
        profiles.append(Series(style, {layer: fmean(one[layer] for one in early) for layer in early[0]}))
        ratios.append(Series(style, {update: one[1] / one[max(one)] for update, one in norms.items()}))
    quotes = "; ".join(f"{style_of(method).label} {words}" for method, words in paper.NORMFORMER_FIGURE3.items())
    panels = [
        Panel(f"(a) mean of the first {EARLY:,} updates", "layer", MEASURE, profiles, log="y"),
        Panel("(b) first layer / last layer", "updates made", "ratio", ratios, log="y"),
    ]
    note = f"The paper's panel (b) cannot be read. Its text says: {quotes}. Its setting: {paper.NORMFORMER_SETTING}."
    return Picture(f"NormFormer, Figure 3: {MEASURE} by layer", panels, notes=[note])


def normformer4(runs: Runs) -> Picture:
    """Draw NormFormer's Figure 4: the learned gains of its LayerNorms and its factors on heads, layer by layer.

    runs: of NormFormer, probed with learned_scale; each is drawn at its last probed update.
    """
    probed = _probed([run for run in runs if run.method == "normformer"] or runs, "learned_scale")
    panels = []
    for slot, (title, places) in SLOTS.items():
        series = [Series(style_of("normformer"), {}, paper=True, band=paper.NORMFORMER_FIGURE4[slot])]
        for run in probed:
            values = run.probe(run.probed("learned_scale")[-1], "learned_scale")
            for place in places:
                middle, low, high = (_along(run, values, f".{place}.{name}") for name in STATISTICS)
                band = {layer: (low[layer], high[layer]) for layer in middle}
                series += [Series(style_of(run.method), middle, band=band)] if middle else []
        panels.append(Panel(title, "layer", "median, least to largest", series))
    note = (
        f"In parentheses: the paper's values ({paper.NORMFORMER_ERROR}). They are medians in (a) and (b), and the "
        f"smallest and largest factor in (c). Its setting: {paper.NORMFORMER_SETTING}."
    )
    heading = "NormFormer, Figure 4: learned scales by layer"
    return Picture(heading, panels, paper.NORMFORMER_SETTING, notes=[note])


def training_losses(runs: Runs) -> Picture:
    """Draw the training loss over updates, one panel a depth: the seeds' mean of each method, or of each "variant"."""
    groups: dict[str, dict[str, Runs]] = {}
    for run in sorted(runs, key=lambda run: (run.encoder_layers > 0, run.decoder_layers, run.facts.get("variant", ""))):
        groups.setdefault(run.depth, {}).setdefault(run.facts.get("variant") or run.method, []).append(run)
    labels = list(dict.fromkeys(label for by_label in groups.values() for label in by_label))
    panels = []
    for name, by_label in groups.items():
        series = []
        for label, own in by_label.items():
            style = style_of_setting(labels.index(label), style_of(label).label)
            points = means(pair for run in own for pair in zip(run.log.updates, run.log.losses, strict=True))
            failed = [run.log.updates[-1] for run in own if run.ended_in_nan or run.stuck]
            series.append(Series(style, points, failed=failed))
        panels.append(Panel(name, "updates", "training loss (bits per token)", series))
    return Picture("Training loss by depth", panels, columns=2)


EVERY: dict[int | str, Callable[[Runs], Picture]] = {  # numbers are figures of the DeepNet paper
    3: figure3, 4: figure4, 5: figure5, 6: figure6, 7: figure7, 8: figure8, 10: figure10, "depth": training_losses,
    "normformer3": normformer3, "normformer4": normformer4, "inverted_gain": training_losses,
}  # fmt: skip


def chosen(runs: Path, only: str | None) -> list[int | str]:
    """Parse the figures of "4,5,normformer4", or list all that have a folder below `runs`.

    Raises a UserError for an unknown figure, and if no figure has a folder.
    """
    if only is not None:
        known = {str(figure): figure for figure in EVERY}
        words = [word.strip() for word in only.split(",")]
        for word in words:
            if word not in known:
                raise UserError(f"--figures {word}: no such figure; choose some of {','.join(known)}")
        return [known[word] for word in words]
    figures = [figure for figure in EVERY if holds_runs(runs / folder_of(figure))]
    if not figures:
        names = ", ".join(dict.fromkeys(map(folder_of, EVERY)))
        raise UserError(f"{runs}: holds none of {names}; record runs first")
    return figures


def redraw(runs: Path, figure: int | str, out: Path) -> str:
    """Write the figure to `out` as PNG and as Markdown, and return the Markdown text.

    Raises a UserError if none of its runs is finished, or one lacks what the figure needs.
    """
    picture, path = EVERY[figure](runs_of(runs, figure)), out / name_of(figure)
    markdown = text(picture)
    out.mkdir(parents=True, exist_ok=True)
    draw(picture, path.with_suffix(".png"))
    with whole(path.with_suffix(".md")) as part:
        part.write_text(markdown, encoding="utf-8")
    return markdown
