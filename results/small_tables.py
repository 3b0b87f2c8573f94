"""Tables of the small experiments, for the pages quickstart.md, inverted_gain.md and later_methods.md.

Every function rows_* takes the runs of one experiment and returns the cells of a table: rows of texts, the header
first. Losses are in bits per token; gradient norms are those of all parameters together, as fairseq logs them
("gnorm"). results/records.py calls these functions.
"""

from __future__ import annotations

import math
from statistics import median

from deepnet_fairseq.study.plots import format_number, style_of
from deepnet_fairseq.study.runs import RecordedRun

NORMS_AT = (25, 100, 400)  # updates whose gradient norms are shown; the runs log every 25 updates
# "variant" in run.json of the runs of scripts/inverted_gain.sh -> its name, in the order of the tables
INVERTED = {
    "": "DeepNorm", "fixed_alpha": "alpha of 32 layers", "inverted_gain": "gain inverted",
    "inverted_gain_fixed_alpha": "gain inverted, alpha of 32 layers",
}  # fmt: skip
LAYERS = (1, 2, 6, 12, 18, 24)  # decoder layers whose gradients are shown, counted from 1


def rows_by_depth(runs: list[RecordedRun]) -> list[list[str]]:
    """Lay out a run a row, by depth and method: seed, last update, final training loss, BLEU, seconds of training.

    The final loss is the mean of the last four logged ones.
    """
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
    """Group the runs of scripts/inverted_gain.sh by (model, variant), in the order of the tables; each group by seed.

    The model is written "24L" for a language model and "6L-6L" for one of translation; the variant is a key of
    INVERTED. Language models come first; models are ordered by depth, then as INVERTED is.
    """
    variants = list(INVERTED)

    def order(run: RecordedRun) -> tuple[bool, int, int, int]:
        """Return the key of a run for sorting. UserError for a variant that INVERTED does not have."""
        translates = run.encoder_layers > 0  # a language model has a decoder only
        variant = variants.index(run.fact("variant", variants))
        return translates, run.decoder_layers, variant, run.seed or 0  # a run may have no seed, None

    groups: dict[tuple[str, str], list[RecordedRun]] = {}
    for run in sorted(runs, key=order):
        groups.setdefault((run.depth, run.facts["variant"]), []).append(run)
    return groups


def rows_inverted(runs: list[RecordedRun]) -> list[list[str]]:
    """Lay out a model and variant a row: final losses and gradient norms, each the median and range over the seeds.

    The training loss is the mean of the last four logged ones, the validation loss is the last one.
    """
    header = ["model", "variant", "seeds", "training loss", "validation loss", "perplexity"]
    rows = [header + [f"gradient norm at {update}" for update in NORMS_AT]]
    for (model, variant), group in by_variant(runs).items():
        training = [run.log.final_loss() for run in group]
        validation = [run.validation.final_loss(1) for run in group]
        perplexity = "-"
        is_language_model = "-" not in model  # "24L", not "6L-6L"
        if is_language_model:  # translation has label smoothing, with which 2^loss is no perplexity
            perplexity = spread([2**loss for loss in validation])
        norms = []
        for update in NORMS_AT:
            norms.append(spread([norm_at(run, update) for run in group]))
        losses = [spread(training), spread(validation)]
        rows.append([model, INVERTED[variant], str(len(group)), *losses, perplexity, *norms])
    return rows


def rows_gradients(runs: list[RecordedRun]) -> list[list[str]]:
    """Lay out the gradient norms of decoder layers and of their query projections, a probed update a row.

    The norms are those of `--deepnet-probe gradient_norm`; a run without the probe has no row, and a layer that the
    model does not have shows "–".
    """
    header = ["model", "variant", "update"]
    header += [f"layer {layer}" for layer in LAYERS]
    header += [f"q of {layer}" for layer in LAYERS]
    probed = [f"decoder.{layer}" for layer in LAYERS]  # names in the probe's record, in the order of the columns
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
    """Format the median and range of the finite values, as "5.01 (4.98 to 5.10)"; "-" if there is none.

    Where other values are NaN or infinite, ", 1 none" follows with their number.
    """
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
    """Return the mean gradient norm of the logged interval that ends at `update`; NaN if the log has no such line."""
    norms = {}  # by update, a text as in the log; a resumed run may log an update twice, and its last line counts
    for row in run.parts["log"]["train_inner"]:
        if "gnorm" in row:
            norms[row["num_updates"]] = float(row["gnorm"])
    return norms.get(str(update), math.nan)


def rows_by_method(runs: list[RecordedRun]) -> list[list[str]]:
    """Lay out a method with its flags a row, and for each depth four columns: see `_losses_and_norms`.

    "variant" in a run's run.json has the flags beside --method, as "FLAG=VALUE+FLAG=VALUE"; it is "" or
    missing where there are none.
    """
    depths = sorted({run.layers for run in runs})
    header = ["method"]
    for layers in depths:
        header += [f"{layers}L-{layers}L training", "validation", "gradient norm", "largest"]

    runs_by_label: dict[str, dict[int, RecordedRun]] = {}  # {method and flags: {layers: run}}
    for run in sorted(runs, key=lambda run: run.name):
        label = run.method
        for setting in run.facts.get("variant", "").split("+"):
            if setting:  # splitting "" gives [""]
                label += f" --{setting.replace('=', ' ')}"
        runs_by_label.setdefault(label, {})[run.layers] = run

    rows = [header]
    for label, by_depth in runs_by_label.items():
        row = [label]
        for layers in depths:
            row += _losses_and_norms(by_depth.get(layers))
        rows.append(row)
    return rows


def _losses_and_norms(run: RecordedRun | None) -> list[str]:
    """Return four cells: the last training loss, the last validation loss, the last and the largest gradient norm.

    In place of the training loss stands "diverged at update N" for a run that diverged. run: None if a method was not
    trained at a depth; its cells are "-".
    """
    if run is None:
        return ["-"] * 4
    training = run.parts.get("diverged") or f"{run.log.losses[-1]:.2f}"
    validation = run.validation.final_loss(1)
    norms = [float(row["gnorm"]) for row in run.parts["log"]["train_inner"] if "gnorm" in row]
    return [training, format_number(validation), format_number(norms[-1]), format_number(max(norms))]
