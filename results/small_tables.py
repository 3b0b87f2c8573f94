"""Tables of the small experiments, for the pages quickstart.md, inverted_gain.md and later_methods.md."""

from __future__ import annotations

import math
from statistics import median

from deepnet_fairseq.study.plots import number, style_of
from deepnet_fairseq.study.runs import RecordedRun

NORMS_AT = (25, 100, 400)  # updates whose gradient norms are shown
INVERTED = {  # "variant" of the runs of scripts/inverted_gain.sh
    "": "DeepNorm", "fixed_alpha": "alpha of 32 layers", "inverted_gain": "gain inverted",
    "inverted_gain_fixed_alpha": "gain inverted, alpha of 32 layers",
}  # fmt: skip
LAYERS = (1, 2, 6, 12, 18, 24)  # whose gradients are shown


def rows_by_depth(runs: list[RecordedRun]) -> list[list[str]]:
    """Return a header and one row a run: its model, its final loss (bits a token), its BLEU."""
    rows = [["model", "method", "seed", "updates", "final loss", "BLEU", "training"]]
    for run in sorted(runs, key=lambda run: (run.layers, run.method)):
        log = run.log
        rows.append([
            run.depth, style_of(run.method).label, str(run.seed), str(log.updates[-1]), f"{log.final_loss():.2f}",
            f"{run.bleu:.2f}" if run.score else "-", f"{3600 * run.hours:.0f} s",
        ])  # fmt: skip
    return rows


def by_variant(runs: list[RecordedRun]) -> dict[tuple[str, str], list[RecordedRun]]:
    """Group by depth and variant: language models by depth, then translation, each in INVERTED's order."""
    order = list(INVERTED)

    def key(run: RecordedRun) -> tuple:
        return run.encoder_layers > 0, run.decoder_layers, order.index(run.fact("variant", order)), run.seed or 0

    groups: dict[tuple[str, str], list[RecordedRun]] = {}
    for run in sorted(runs, key=key):
        groups.setdefault((run.depth, run.facts["variant"]), []).append(run)
    return groups


def rows_inverted(runs: list[RecordedRun]) -> list[list[str]]:
    """Return a header and a row a model and variant: losses (bits) and gradient norms, median and range."""
    header = ["model", "variant", "seeds", "training loss", "validation loss", "perplexity"]
    rows = [header + [f"gradient norm at {update}" for update in NORMS_AT]]
    for (model, variant), group in by_variant(runs).items():
        final, valid = [run.log.final_loss() for run in group], [run.validation.final_loss(1) for run in group]
        # of a label-smoothed loss 2^loss is no perplexity
        perplexity = "-" if "-" in model else spread([2**loss for loss in valid])
        norms = [spread([norm_at(run, update) for run in group]) for update in NORMS_AT]
        rows.append([model, INVERTED[variant], str(len(group)), spread(final), spread(valid), perplexity, *norms])
    return rows


def rows_gradients(runs: list[RecordedRun]) -> list[list[str]]:
    """Return a header and a row for each update with gradient_norm: norms of layers and of query matrices."""
    rows = [["model", "variant", "update", *(f"layer {layer}" for layer in LAYERS), *(f"q of {l}" for l in LAYERS)]]
    for (model, variant), group in by_variant(runs).items():
        for run in group:
            for update in run.updates_with("gradient_norm"):
                norms = run.probe_values("gradient_norm", update)
                places = [f"decoder.{layer}{matrix}" for matrix in ("", ".self_attn.q") for layer in LAYERS]
                cells = [number(norms.get(place), 2) for place in places]
                rows.append([model, INVERTED[variant], str(update), *cells])
    return rows


def spread(values: list[float]) -> str:
    """Format the median and range of numbers, as "5.01 (4.98 to 5.10)"; values that are not finite are counted."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "-"
    text = number(median(finite)) + (f" ({number(min(finite))} to {number(max(finite))})" if len(finite) > 1 else "")
    return text + (f", {len(values) - len(finite)} none" if len(finite) < len(values) else "")


def norm_at(run: RecordedRun, update: int) -> float:
    """Return the mean gradient norm of the logged interval that ends at `update`; NaN if there is none."""
    norms = {row["num_updates"]: float(row["gnorm"]) for row in run.parts["log"]["train_inner"] if "gnorm" in row}
    return norms.get(str(update), math.nan)


def rows_by_method(runs: list[RecordedRun]) -> list[list[str]]:
    """Return a header and a row a method with its flags: losses (bits), gradient norms and outcome by depth."""
    depths = sorted({run.layers for run in runs})
    header = ["method"]
    for layers in depths:
        header += [f"{layers}L-{layers}L training", "validation", "gradient norm", "largest"]
    grid: dict[str, dict[int, RecordedRun]] = {}
    for run in sorted(runs, key=lambda run: run.name):
        flags = "".join(f" --{word.replace('=', ' ')}" for word in run.facts.get("variant", "").split("+") if word)
        grid.setdefault(f"{run.method}{flags}", {})[run.layers] = run
    return [header, *([label, *(cell for n in depths for cell in _cells(of.get(n)))] for label, of in grid.items())]


def _cells(run: RecordedRun | None) -> list[str]:
    if run is None:
        return ["-"] * 4
    log, ended = run.log, run.parts.get("diverged", "")
    norms = [float(row["gnorm"]) for row in run.parts["log"]["train_inner"] if "gnorm" in row]
    return [
        ended or f"{log.losses[-1]:.2f}",
        number(run.validation.final_loss(1)),
        *map(number, (norms[-1], max(norms))),
    ]
