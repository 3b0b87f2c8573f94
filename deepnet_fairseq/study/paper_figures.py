"""Figures 3 to 10 of the DeepNet paper from finished runs: a function for each, from its runs to a Picture.

A function raises UserError, naming the run, where one lacks what the figure needs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from ..core.methods import METHODS, get_method
from ..errors import UserError
from ..languages import parse_pair
from . import paper
from .plots import Map, Panel, Picture, Series, Style, means, number, style_of, style_of_setting
from .runs import RecordedRun

Runs = list[RecordedRun]
LAYERS = "layers N of an N-N model"
LOSS = "validation loss (bits per token)"
FIGURE4 = {  # its series
    "post_ln_no_warmup": Style("Post-LN, no warm-up", "#CC79A7", "^"),
    "post_ln_warmup": replace(style_of("post_ln"), label="Post-LN, warm-up"),
    "post_ln_init_warmup": replace(style_of("post_ln_init"), label="Post-LN-init, warm-up"),
}
FIGURE7 = {"lr": "(a) learning rate", "batch": "(b) batches per update", "size": "(c) size (width-FFN-heads)"}
PAPER_WIDTH = 512  # of the models of Figure 4


def _picture(figure: int, title: str, panels: list[Panel], missing: Iterable[str] = (), **more) -> Picture:
    """Return a figure of the DeepNet paper. missing: runs that it would have besides."""
    gaps, setting = "; ".join(missing), paper.SETTING[figure]
    notes = [f"no run of: {gaps}"] if gaps else []
    notes.append(f"paper, in parentheses: {setting}; read off its figure, {paper.ERROR[figure]}")
    return Picture(f"Figure {figure}: {title}", panels, setting, notes=notes, **more)


def _depths(runs: Iterable[RecordedRun]) -> str:
    return ", ".join(sorted({run.depth for run in runs})) or "no run"


def _gradients(run: RecordedRun, update: int) -> dict[int, float]:
    """Return decoder layer, from 1 -> norm of its gradient in that update, NaN where there is none."""
    values = run.probe(update, "gradient_norm")
    return {layer: values.get(f"decoder.{layer}", math.nan) for layer in range(1, run.decoder_layers + 1)}


def _validation(run: RecordedRun, style: Style, epochs: bool = False) -> Series:
    curve = run.validation
    points = dict(zip(curve.epochs if epochs else curve.updates, curve.losses, strict=True))
    return Series(style, points, failed=[max(points, default=0)] if run.diverged else [])


def figure3(runs: Runs) -> Picture:
    """Post-LN's gradients vanish towards the bottom, Post-LN-init's do not, and it trains.

    runs: "part": "profile" with probes of update 0, or "curve" with validation losses.
    """
    methods, parts = ("post_ln", "post_ln_init"), ("profile", "curve")
    there = {(run.choice("method", methods), run.choice("part", parts)) for run in runs}
    norms = {run: _gradients(run, 0) for run in runs if run.facts["part"] == "profile"}
    curves = [run for run in runs if run.facts["part"] == "curve"]
    epochs = all(run.validation.once_an_epoch for run in curves)  # where each has one loss, over these
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
        loss += [_validation(run, style, epochs) for run in curves if run.method == method]
        theirs = {epoch + 1: value for epoch, value in paper.FIGURE3_LOSS[method].items()}
        loss.append(Series(style, theirs, paper=True))
    top, x = ("", "epochs") if epochs else ("epochs (paper)", "updates")
    panels = [
        Panel(f"(a) {_depths(deepest.values())}", "decoder layer from the top", "gradient norm", profile, bars=True),
        Panel("(b) last decoder layer", LAYERS, "gradient norm", last),
        Panel(f"(c) {_depths(curves)}", x, LOSS, loss, top=top),
    ]
    missing = [f"{method}, {part}" for part in parts for method in methods if (method, part) not in there]
    return _picture(3, "gradient norm by layer and by depth, validation loss", panels, missing)


def _probed(run: RecordedRun, probe: str) -> list[int]:
    """Return the updates with that probe; UserError if there are none."""
    if not (updates := run.probed(probe)):
        raise UserError(f"{run.where('probes')}: has no {probe}; record it again with that probe")
    return updates


def _by_update(run: RecordedRun, probe: str, addresses: str) -> dict[int, float]:
    """Return update -> mean of the probe's values at the addresses that match."""
    site = re.compile(addresses)
    rows = {update: run.probe(update, probe) for update in _probed(run, probe)}
    return {update: fmean(value for at, value in row.items() if site.fullmatch(at)) for update, row in rows.items()}


FFN, ATTENTION = (rf"(encoder|decoder)\.\d+\.{branch}" for branch in ("ffn", "self_attn"))
FIGURE4_PANELS = (  # title, y axis, probe, addresses, the paper's values
    ("(a) accumulated model update", "||F(x,θᵢ) - F(x,θ₀)||", "model_update", "decoder", paper.FIGURE4_UPDATE),
    ("(b) LayerNorm input behind FFN", "L2 norm", "ln_input", FFN, paper.FIGURE4_FFN),
    ("(c) LayerNorm input behind self-attention", "L2 norm", "ln_input", ATTENTION, paper.FIGURE4_ATTENTION),
)


def figure4(runs: Runs) -> Picture:
    """Without warm-up Post-LN's output jumps at once, its LayerNorms read more, and its gradients vanish.

    runs: one for each "series" of FIGURE4, of one width, probed at every update. The norms are L2 over features, so the
    paper's are drawn times the square root of the runs' width over its own.
    """
    found = {run.choice("series", FIGURE4): run for run in runs}
    width = runs[0].record.header.get("encoder_embed_dim", PAPER_WIDTH)
    scale = (width / PAPER_WIDTH) ** 0.5
    scaled = f", paper's x {scale:.3g}" if scale != 1 else ""
    panels = []
    for title, y, probe, addresses, theirs in FIGURE4_PANELS:
        series = []
        for key, style in FIGURE4.items():
            series += [Series(style, _by_update(found[key], probe, addresses))] if key in found else []
            pairs = zip(paper.FIGURE4_UPDATES, theirs[key], strict=True)
            series.append(Series(style, {update: float(f"{v * scale:.3g}") for update, v in pairs}, paper=True))
        panels.append(Panel(title, "updates made", y + scaled, series))
    last = []
    for key, style in FIGURE4.items():
        if run := found.get(key):
            last.append(Series(style, _gradients(run, _probed(run, "gradient_norm")[-1])))
        last.append(Series(style, paper.FIGURE4_GRADIENT[key], paper=True))
    panels.append(Panel("(d) gradient at the last recorded update", "decoder layer", "gradient norm", last))
    title = f"the first updates of {_depths(runs)}, width {width}"
    return _picture(4, title, panels, [series for series in FIGURE4 if series not in found], columns=2)


@dataclass(frozen=True)
class Line:
    """y = slope x + intercept by least squares, with half of each 95% interval (Student's t; NaN for two points)."""

    slope: float
    intercept: float
    slope_error: float
    intercept_error: float
    r2: float


def scaling_law(points: Mapping[float, float]) -> Line:
    """Fit y = A log10 x + B to two points or more: slope A, intercept B."""
    from scipy import stats

    regression = stats.linregress([math.log10(x) for x in points], list(points.values()))
    t = stats.t.ppf(0.975, len(points) - 2) if len(points) > 2 else math.nan
    errors = t * regression.stderr, t * regression.intercept_stderr
    return Line(regression.slope, regression.intercept, *errors, regression.rvalue**2)


def power_law(points: Mapping[float, float]) -> Line:
    """Fit y = 10^intercept x^slope as a line in log10 x and log10 y; both must be above 0."""
    return scaling_law({x: math.log10(y) for x, y in points.items()})


def _fitted(series: Series, law: Callable[[Mapping[float, float]], Line]) -> tuple[Series, Line | None]:
    """Return the series with its fitted line, if it has two points or more."""
    if len(series.points) < 2:
        return series, None
    line = law(series.points)
    values = {x: line.slope * math.log10(x) + line.intercept for x in (min(series.points), max(series.points))}
    values = {x: 10**y for x, y in values.items()} if law is power_law else values
    return replace(series, law=values, joined=False), line


def figure5(runs: Runs) -> Picture:
    """The model update early in training grows with depth under Post-LN, and far less under DeepNorm.

    runs: both methods at several depths, "update": U, probed after U updates, the same number for all.
    """
    methods, update = ("post_ln", "deepnorm"), runs[0].facts.get("update", 0)
    series, points = [], {}
    slopes = [["method", "source", "layers", "slope", "95%", "R2"]]
    for method in methods:
        own = [run for run in runs if run.choice("method", methods) == method]
        found = [(run.layers, run.probe(update, "model_update").get("decoder", math.nan)) for run in own]
        points[method] = means((n, value) for n, value in found if math.isfinite(value) and value > 0)
        failed, style = sorted({n for n, value in found if not math.isfinite(value)}), style_of(method)
        for one in (Series(style, points[method], failed=failed), Series(style, paper.FIGURE5[method], paper=True)):
            fitted, law = _fitted(one, power_law)
            series.append(fitted)
            if law:
                span, source = f"{min(one.points)} to {max(one.points)}", "paper" if one.paper else "measured"
                error = f"± {number(law.slope_error, 2)}"
                slopes.append([style.label, source, span, f"{law.slope:.2f}", error, number(law.r2)])
    ratios = [["layers", "Post-LN / DeepNorm", "paper"]]
    for layers in sorted(points["post_ln"].keys() & points["deepnorm"].keys()):
        pairs = [[found[method].get(layers, math.nan) for method in methods] for found in (points, paper.FIGURE5)]
        ratios.append([str(layers), *(number(post / deep) for post, deep in pairs)])
    when = f"after {update} updates"
    panel = Panel(when, LAYERS, "model update ||F(x,θᵢ) - F(x,θ₀)||", series, log="xy")
    missing = [f"{style_of(method).label} (at two depths or more)" for method in methods if len(points[method]) < 2]
    return _picture(5, f"model update of the decoder {when}", [panel], missing, tables=[slopes, ratios])


def methods_of_panel(norm: str) -> list[str]:
    """Return the methods of one panel of Figure 6: DeepNorm, those of the paper, then others."""
    rest = [name for name in METHODS if get_method(name).norm == norm and name != "deepnorm"]
    return ["deepnorm", *sorted(rest, key=lambda name: (name not in paper.FIGURE6, name))]


def _scores(runs: Runs, method: str, layers: str) -> Series:
    """Return mean BLEU over layers of the runs that did not diverge."""
    found = [run for run in runs if run.method == method]
    points = means((getattr(run, layers), run.bleu) for run in found if not run.diverged)
    return Series(style_of(method), points, failed=sorted({getattr(run, layers) for run in found if run.diverged}))


def figure6(runs: Runs) -> Picture:
    """BLEU against depth, methods by where their LayerNorm stands, DeepNorm in each panel.

    runs: methods at several depths, with score.json, or diverged.
    """
    panels, missing = [], set()
    for norm, title in {"post": "(a) Post-LN", "none": "(b) no LN", "pre": "(c) Pre-LN"}.items():
        series = []
        for method in methods_of_panel(norm):
            one = _scores(runs, method, "layers")
            if one.points or one.failed:
                series.append(one)
            else:
                missing.add(one.style.label)
            if method in paper.FIGURE6:
                points = dict(zip(paper.FIGURE6_LAYERS, paper.FIGURE6[method], strict=True))
                series.append(Series(one.style, points, paper=True))
        panels.append(Panel(title, LAYERS, "BLEU", series))
    return _picture(6, "BLEU against depth", panels, sorted(missing))


def magnitude(value: str) -> tuple[float, str]:
    """Return what settings are sorted by: 5e-4 of "5e-4", 512 of "512-2048-8"; then the setting itself."""
    first = re.match(r"\d+(\.\d+)?(e-?\d+)?", value)
    return float(first.group()) if first else 0.0, value


def figure7(runs: Runs) -> Picture:
    """Validation loss of deep models while learning rate, batch or width changes.

    runs: "panel": "lr", "batch" or "size", "value": the setting; validation losses.
    """
    # a run too short to be seen beside the paper's 30,000 updates gets an axis of its own
    found = {(run.choice("panel", FIGURE7), str(run.facts.get("value"))): run for run in runs}
    short = max(run.validation.end for run in runs) < paper.FIGURE7_UPDATES[0]
    panels, missing = [], []
    for name, title in FIGURE7.items():
        theirs, mine = paper.FIGURE7[name], {value: run for (panel, value), run in found.items() if panel == name}
        series = []
        for rank, value in enumerate(sorted({*mine, *theirs}, key=magnitude)):
            style = style_of_setting(rank, value)
            series += [_validation(mine[value], style)] if value in mine else []
            if value in theirs:
                points = dict(zip(paper.FIGURE7_UPDATES, theirs[value], strict=True))
                series.append(Series(style, points, paper=True))
        top = "updates (paper)" if short else ""
        panels.append(Panel(f"{title}; {_depths(mine.values())}", "updates", LOSS, series, top=top))
        missing += [] if mine else [name]
    return _picture(7, "validation loss", panels, missing)


def figure8(runs: Runs) -> Picture:
    """BLEU against the logarithm of depth, encoder and decoder layers together, with the line L(d) = A log10 d + B.

    runs: methods at several depths, with score.json, or diverged.
    """
    series, missing = [], []
    fits = [["method", "points", "A (BLEU per decade)", "95%", "B", "95%", "R2"]]
    for method in dict.fromkeys([*paper.FIGURE8, *sorted(run.method for run in runs)]):
        mine = _scores(runs, method, "total_layers")
        theirs = Series(mine.style, paper.FIGURE8.get(method, {}), paper=True, joined=False)
        missing += [f"{mine.style.label}, scored at two depths or more"] if len(mine.points) < 2 else []
        for one in (mine, theirs):
            fitted, law = _fitted(one, scaling_law)
            series += [fitted] if one.points or one.failed else []
            if law:
                errors = [f"± {number(error)}" for error in (law.slope_error, law.intercept_error)]
                cells = [f"{law.slope:.2f}", errors[0], f"{law.intercept:.2f}", errors[1], number(law.r2)]
                fits.append([one.style.label + ", paper" * one.paper, str(len(one.points)), *cells])
    panel = Panel("L(d) = A log10 d + B", "layers d, encoder and decoder together", "BLEU", series, log="x")
    return _picture(8, "BLEU against the logarithm of depth", [panel], missing, tables=[fits])


def figure10(runs: Runs) -> Picture:
    """Figures 9 and 10: BLEU of each direction on Flores-101, a map a run, on one scale.

    runs: of Table 3, with the test set "flores" in score.json.
    """
    maps, rows = [], [["run", "directions", "mean", "lowest", "highest"]]
    found: dict[str, dict[str, float]] = {}
    for run in runs:
        sets = (run.score or {}).get("sets", {})
        scores = {name: one["bleu"] for name, one in sets.get("flores", {}).get("directions", {}).items()}
        if not scores:
            raise UserError(f"{run.where('score')}: has no test set flores; translate that and score the run again")
        found[f"{run.facts.get('system', run.name)} {run.depth}"] = scores
    pairs = {name: parse_pair("direction", name) for scores in found.values() for name in scores}
    languages = sorted({language for pair in pairs.values() for language in pair})
    for name, scores in found.items():
        maps.append(Map(name, languages, {pairs[direction]: value for direction, value in scores.items()}))
        ends = [f"{one} {number(scores[one])}" for one in (min(scores, key=scores.get), max(scores, key=scores.get))]
        rows.append([name, str(len(scores)), number(fmean(scores.values())), *ends])
    note = "paper: 87 languages, 7,482 directions, as colours without numbers; spBLEU 13.6 (M2M-100) and 18.6 (DeepNet)"
    return Picture("Figures 9 and 10: BLEU on Flores-101 by language", maps, tables=[rows], notes=[note], columns=2)
