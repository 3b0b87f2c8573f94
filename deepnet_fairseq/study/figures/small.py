"""Small experiments on the quickstart's corpus: DeepNorm with its gain inverted, every method's first updates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from matplotlib.colors import to_rgba

from ..runs import RecordedRun
from ..style import Style
from .sheet import Sheet, number, page

SERIES = {  # run.json's "variant" -> how it looks; the names are those of scripts/inverted_gain
    "": Style("DeepNorm", "#D55E00", "o"),
    "fixed_alpha": Style("alpha of 32 layers", "#E69F00", "^"),
    "inverted_gain": Style("gain inverted", "#0072B2", "v"),
    "inverted_gain_fixed_alpha": Style("gain inverted, alpha of 32 layers", "#CC79A7", ">"),
}
NORMS_AT = (25, 100, 400)  # updates whose gradient norms are shown
LAYERS = (1, 2, 6, 12, 18, 24)  # whose gradients are shown
FAINT = 0.25
SOURCE = "runs of scripts/inverted_gain.sh, one CPU"


def inverted_gain(runs: list[RecordedRun], path: Path) -> str:
    """Training loss over updates by model and variant, a faint line a seed and the median of the seeds.

    runs: "variant": one of SERIES. The text has the table of `rows_inverted`.
    """
    groups = by_setting(runs)
    models = list(dict.fromkeys(model for model, _ in groups))
    sheet = Sheet(2, math.ceil(len(models) / 2), "", size=(4.2, 3.0))
    for (model, variant), found in groups.items():
        panel, style = models.index(model), SERIES[variant]
        updates = found[0].log.updates
        for run in found if len(found) > 1 else ():
            faint = {"color": to_rgba(style.colour, FAINT), "linewidth": 1.0}
            sheet.panels[panel].plot(run.log.updates, run.log.losses, **faint)
        middle = [median(losses) for losses in zip(*(run.log.losses for run in found), strict=False)]
        sheet.curve(panel, updates[: len(middle)], middle, style, markevery=max(1, len(updates) // 6))
    for panel, model in enumerate(models):
        sheet.label(panel, named(model), "updates", "training loss (bits per token)")
    for axes in sheet.panels[len(models) :]:
        axes.set_visible(False)
    sheet.save(path)
    return page("DeepNorm with its gain inverted", [rows_inverted(runs)], (), SOURCE)


def by_setting(runs: Iterable[RecordedRun]) -> dict[tuple[str, str], list[RecordedRun]]:
    """(depth, variant) -> the runs of all seeds; language models by depth, then translation, each in SERIES' order.

    UserError, naming the run, for a variant that is none of them.
    """
    order = list(SERIES)

    def key(run: RecordedRun) -> tuple:
        return run.encoder_layers > 0, run.decoder_layers, order.index(run.choice("variant", order)), run.seed or 0

    found: dict[tuple[str, str], list[RecordedRun]] = {}
    for run in sorted(runs, key=key):
        found.setdefault((run.depth, run.facts["variant"]), []).append(run)
    return found


def named(depth: str) -> str:
    """As "6L, language model"."""
    return f"{depth}, {'translation' if '-' in depth else 'language model'}"


def rows_inverted(runs: list[RecordedRun]) -> list[list[str]]:
    """A header, and a row a model and variant: median and range over seeds of losses (bits) and gradient norms."""
    header = ["model", "variant", "seeds", "training loss", "validation loss", "perplexity"]
    rows = [header + [f"gradient norm at {update}" for update in NORMS_AT]]
    for (model, variant), found in by_setting(runs).items():
        final, valid = [run.log.final_loss() for run in found], [run.validation.final for run in found]
        # of a label-smoothed loss 2^loss is no perplexity
        perplexity = "-" if "-" in model else spread([2**loss for loss in valid])
        norms = [spread([norm_at(run, update) for run in found]) for update in NORMS_AT]
        rows.append([model, SERIES[variant].label, str(len(found)), spread(final), spread(valid), perplexity, *norms])
    return rows


def rows_gradients(runs: list[RecordedRun]) -> list[list[str]]:
    """A header, and a row for each probed update of a run with gradient_norm: norms of layers and of matrices."""
    rows = [["model", "variant", "update", *(f"layer {layer}" for layer in LAYERS), *(f"q of {l}" for l in LAYERS)]]
    for (model, variant), found in by_setting(runs).items():
        for run in found:
            for update in run.probed("gradient_norm"):
                norms = run.probe(update, "gradient_norm")
                places = [f"decoder.{layer}{matrix}" for matrix in ("", ".self_attn.q") for layer in LAYERS]
                cells = [number(norms.get(place), 2) for place in places]
                rows.append([model, SERIES[variant].label, str(update), *cells])
    return rows


def spread(values: list[float]) -> str:
    """As "5.01 (4.98 to 5.10)": median and range; "diverged" stands for what is no number."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "-"
    text = number(median(finite)) + (f" ({number(min(finite))} to {number(max(finite))})" if len(finite) > 1 else "")
    return text + (f", {len(values) - len(finite)} none" if len(finite) < len(values) else "")


def norm_at(run: RecordedRun, update: int) -> float:
    """The mean norm of the gradient in the logged interval that ends at `update`; NaN where there is none."""
    norms = {row["num_updates"]: float(row["gnorm"]) for row in run.parts["log"]["train_inner"] if "gnorm" in row}
    return norms.get(str(update), math.nan)


def rows_by_method(runs: list[RecordedRun]) -> list[list[str]]:
    """A header, and a row a method with its flags: losses (bits) and gradient norms of each depth, how it ended."""
    depths = sorted({run.layers for run in runs})
    header = ["method"]
    for layers in depths:
        header += [f"{layers}L-{layers}L training", "validation", "gradient norm", "largest"]
    found: dict[str, dict[int, RecordedRun]] = {}
    for run in sorted(runs, key=lambda run: run.name):
        flags = "".join(f" --{word.replace('=', ' ')}" for word in run.facts.get("variant", "").split("+") if word)
        found.setdefault(f"{run.method}{flags}", {})[run.layers] = run
    return [header, *([label, *(cell for n in depths for cell in _cells(of.get(n)))] for label, of in found.items())]


def _cells(run: RecordedRun | None) -> list[str]:
    if run is None:
        return ["-"] * 4
    log, ended = run.log, run.parts.get("diverged", "")
    norms = [float(row["gnorm"]) for row in run.parts["log"]["train_inner"] if "gnorm" in row]
    return [ended or f"{log.losses[-1]:.2f}", number(run.validation.final), *map(number, (norms[-1], max(norms)))]
