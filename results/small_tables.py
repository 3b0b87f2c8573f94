"""Tables of the small experiments, for the pages quickstart.md, inverted_gain.md and later_methods.md."""

from __future__ import annotations

import math
from statistics import median

from deepnet_fairseq.study.plots import format_number, style_of
from deepnet_fairseq.study.runs import RecordedRun

NORMS_AT = (25, 100, 400)  # updates whose gradient norms are shown
# "variant" in run.json of the runs of scripts/inverted_gain.sh -> its name, in the order of the tables
INVERTED = {
    "": "DeepNorm", "fixed_alpha": "alpha of 32 layers", "inverted_gain": "gain inverted",
    "inverted_gain_fixed_alpha": "gain inverted, alpha of 32 layers",
}  # fmt: skip
LAYERS = (1, 2, 6, 12, 18, 24)  # whose gradients are shown


def rows_by_depth(runs: list[RecordedRun]) -> list[list[str]]:
    """Return a header and one row a run: its model, its final loss (bits a token), its BLEU, its seconds."""
    rows = [["model", "method", "seed", "updates", "final loss", "BLEU", "training"]]
    for run in sorted(runs, key=lambda run: (run.layers, run.method)):
        method = style_of(run.method).label
        updates = str(run.log.updates[-1])
        loss = f"{run.log.final_loss():.2f}"
        bleu = f"{run.bleu:.2f}" if run.score else "-"
        seconds = f"{3600 * run.hours:.0f} s"
        rows.append([run.depth, method, str(run.seed), updates, loss, bleu, seconds])
    return rows


def by_variant(runs: list[RecordedRun]) -> dict[tuple[str, str], list[RecordedRun]]:
    """Group by (depth, variant): language models by depth, then translation, each in INVERTED's order."""
    variants = list(INVERTED)

    def key(run: RecordedRun) -> tuple[bool, int, int, int]:
        translates = run.encoder_layers > 0
        variant = variants.index(run.fact("variant", variants))
        return translates, run.decoder_layers, variant, run.seed or 0

    groups: dict[tuple[str, str], list[RecordedRun]] = {}
    for run in sorted(runs, key=key):
        groups.setdefault((run.depth, run.facts["variant"]), []).append(run)
    return groups


def rows_inverted(runs: list[RecordedRun]) -> list[list[str]]:
    """Return a header and a row a model and variant: losses (bits) and gradient norms, median and range."""
    header = ["model", "variant", "seeds", "training loss", "validation loss", "perplexity"]
    rows = [header + [f"gradient norm at {update}" for update in NORMS_AT]]
    for (model, variant), group in by_variant(runs).items():
        training = [run.log.final_loss() for run in group]
        validation = [run.validation.final_loss(1) for run in group]
        perplexity = "-"
        if "-" not in model:  # a language model; of a translation's label-smoothed loss 2^loss is no perplexity
            perplexity = spread([2**loss for loss in validation])
        norms = []
        for update in NORMS_AT:
            norms.append(spread([norm_at(run, update) for run in group]))
        losses = [spread(training), spread(validation)]
        rows.append([model, INVERTED[variant], str(len(group)), *losses, perplexity, *norms])
    return rows


def rows_gradients(runs: list[RecordedRun]) -> list[list[str]]:
    """Return a header and a row for each update with the probe gradient_norm: of decoder layers and query matrices."""
    header = ["model", "variant", "update"]
    header += [f"layer {layer}" for layer in LAYERS]
    header += [f"q of {layer}" for layer in LAYERS]
    probed = [f"decoder.{layer}" for layer in LAYERS]
    probed += [f"decoder.{layer}.self_attn.q" for layer in LAYERS]

    rows = [header]
    for (model, variant), group in by_variant(runs).items():
        for run in group:
            for update in run.updates_with("gradient_norm"):
                norms = run.probe_values("gradient_norm", update)
                cells = [format_number(norms.get(name), 2) for name in probed]
                rows.append([model, INVERTED[variant], str(update), *cells])
    return rows


def spread(values: list[float]) -> str:
    """Format the median and range of numbers, as "5.01 (4.98 to 5.10), 1 none": one value is not finite."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "-"
    text = format_number(median(finite))
    if len(finite) > 1:
        text += f" ({format_number(min(finite))} to {format_number(max(finite))})"
    if len(finite) < len(values):
        text += f", {len(values) - len(finite)} none"
    return text


def norm_at(run: RecordedRun, update: int) -> float:
    """Return the mean gradient norm of the logged interval that ends at `update`; NaN if there is none."""
    norms = {}  # by update, which the log has as text
    for row in run.parts["log"]["train_inner"]:
        if "gnorm" in row:
            norms[row["num_updates"]] = float(row["gnorm"])
    return norms.get(str(update), math.nan)


def rows_by_method(runs: list[RecordedRun]) -> list[list[str]]:
    """Return a header and a row a method with its flags: losses (bits), gradient norms and outcome by depth."""
    depths = sorted({run.layers for run in runs})
    header = ["method"]
    for layers in depths:
        header += [f"{layers}L-{layers}L training", "validation", "gradient norm", "largest"]

    runs_by_label: dict[str, dict[int, RecordedRun]] = {}  # method and flags -> layers -> run
    for run in sorted(runs, key=lambda run: run.name):
        label = run.method
        for word in run.facts.get("variant", "").split("+"):  # "FLAG=VALUE+FLAG=VALUE", or nothing
            if word:
                label += f" --{word.replace('=', ' ')}"
        runs_by_label.setdefault(label, {})[run.layers] = run

    rows = [header]
    for label, by_depth in runs_by_label.items():
        row = [label]
        for layers in depths:
            row += _losses_and_norms(by_depth.get(layers))
        rows.append(row)
    return rows


def _losses_and_norms(run: RecordedRun | None) -> list[str]:
    """Return a run's last training loss, or how it diverged, its validation loss, and its last and largest norm."""
    if run is None:
        return ["-"] * 4
    log = run.log
    training = run.parts.get("diverged") or f"{log.losses[-1]:.2f}"
    validation = run.validation.final_loss(1)
    norms = [float(row["gnorm"]) for row in run.parts["log"]["train_inner"] if "gnorm" in row]
    return [training, format_number(validation), format_number(norms[-1]), format_number(max(norms))]
