"""Synthetic recorded runs of the papers' figures, with known numbers. Losses are in bits per token."""

from __future__ import annotations

import json
import math
from pathlib import Path

from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.study import figures
from deepnet_fairseq.study.runs import folder_of

from .reported import write_run

INTERVAL = 25  # updates between two logged losses


def losses_falling_to(final: float, last: int = 400) -> dict[int, float]:
    """Return training losses by update: 10 at first, and `final` at the last four that are logged, up to update `last`.

    The mean of the last four is a run's final loss.
    """
    losses = {INTERVAL: 10.0}
    for update in range(last - 3 * INTERVAL, last + 1, INTERVAL):
        losses[update] = final
    return losses


# A run is stuck if its final loss is above 68% of its first (study/runs.py, STUCK), as after learning no more than the
# frequencies of words.
HEALTHY = losses_falling_to(5.0)
STUCK = losses_falling_to(8.0)


def write_figure_run(
    root: Path,
    figure: int | str,
    name: str,
    method: str = "deepnorm",
    layers: int = 18,
    probes: dict | None = None,
    losses: dict[int, float] | None = None,
    valid: dict[int, tuple[int, float]] | None = None,
    bleu: float | None = None,
    **others,
) -> Path:
    """Write the folder of a finished run of a figure, and return it.

    root: folder of all runs; figure: its number or name; name: of the run; probes: update -> probe -> address -> value;
    losses: of training by update, None for HEALTHY; valid: update -> (epoch, validation loss); bleu: of the score, None
    for a run without one; others: parts and facts of the run, see write_run.
    """
    score = None if bleu is None else {"bleu": bleu, "signature": "s"}
    parts = {"log": _log_of(losses or HEALTHY, valid or {}), "environment": None, "score": score, "seed": None}
    folder = write_run(root, folder_of(figure), name, method, layers, **parts | others)

    if probes is not None:
        rows = [{"format": 1, "encoder_embed_dim": 64}]
        for update, values in probes.items():
            rows.append({"update": update} | values)
        (folder / "probes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def _log_of(losses: dict[int, float], valid: dict[int, tuple[int, float]]) -> str:
    """Return the text of a train.log with these losses of training and validation; its lines have no time."""
    lines = []
    for update, loss in losses.items():
        row = {"loss": str(loss), "num_updates": str(update), "wall": update}
        lines.append(f"now | INFO | train_inner | {json.dumps(row)}\n")
    for update, (epoch, loss) in valid.items():
        row = {"epoch": epoch, "valid_loss": str(loss), "valid_num_updates": str(update)}
        lines.append(f"now | INFO | valid | {json.dumps(row)}\n")
    return "".join(lines)


def probes_of_figure4(layers: int = 18, updates: int = 3) -> dict:
    """Return the probes that Figure 4 shows, update -> probe -> address -> value, for updates 0, 1, ...

    At update u they are
      panel (a): a model update of u;
      panel (b): norms of LayerNorm's input behind FFN, 7 + u (encoder) and 9 + u (decoder), 8 + u in the mean;
      panel (c): norms of LayerNorm's input behind self-attention, 9;
      gradient norms: (l + u) / 100 in layer l.
    Addresses that the figure must leave out have the value 99.
    """
    return {update: _probes_of_update(update, layers) for update in range(updates)}


def _probes_of_update(update: int, layers: int) -> dict:
    """Return probe -> address -> value at one update, as probes_of_figure4 describes them."""
    norms = {"decoder.layer_norm": 99.0, "decoder.1.encoder_attn": 99.0}
    gradients = {"decoder.1.ffn.fc1": 99.0}
    for layer in range(1, layers + 1):
        norms[f"encoder.{layer}.ffn"] = 7.0 + update
        norms[f"decoder.{layer}.ffn"] = 9.0 + update
        norms[f"encoder.{layer}.self_attn"] = 9.0
        norms[f"decoder.{layer}.self_attn"] = 9.0
        gradients[f"decoder.{layer}"] = (layer + update) / 100
    return {"model_update": {"decoder": float(update)}, "ln_input": norms, "gradient_norm": gradients}


def write_runs_of_every_figure(root: Path) -> None:
    """Write the runs that each of Figures 3 to 8 of DeepNet's paper needs."""
    _write_figure3(root)

    for series in figures.FIGURE4:
        write_figure_run(root, 4, series, "post_ln", probes=probes_of_figure4(), series=series)

    _write_figure5(root)

    for method in METHODS:
        write_figure_run(root, 6, method, method, 6, bleu=30.0)
    write_figure_run(root, 6, "deep", "post_ln", 50, losses=STUCK, bleu=0.4)

    for panel in figures.FIGURE7:
        for value in ("1e-3", "5e-4"):  # of what the panel varies, whatever that is
            losses = {100: (1, 7.0), 200: (1, 5.0)}
            write_figure_run(root, 7, f"{panel}{value}", valid=losses, panel=panel, value=value)

    for layers in (6, 10, 50):
        bleu = 20 + 5 * math.log10(2 * layers)  # a slope of 5 over the logarithm of depth, encoder and decoder together
        write_figure_run(root, 8, f"{layers}", layers=layers, bleu=bleu)


def _write_figure3(root: Path) -> None:
    """Write runs with a gradient norm of l / 10 in layer l, and others whose validation loss falls from 8 to 6.5."""
    for method in ("post_ln", "post_ln_init"):
        for layers in (6, 18):
            norms = {f"decoder.{layer}": layer / 10 for layer in range(1, layers + 1)}
            probes = {0: {"gradient_norm": norms}}
            write_figure_run(root, 3, f"profile-{method}-{layers}", method, layers, probes, part="profile")
        losses = {100: (1, 8.0), 200: (2, 6.5)}
        write_figure_run(root, 3, f"curve-{method}", method, valid=losses, part="curve")


def _write_figure5(root: Path) -> None:
    """Write runs whose model update grows as a power of the layers N: N^1.1 for Post-LN and N^0.5 for DeepNorm."""
    for method, exponent in (("post_ln", 1.1), ("deepnorm", 0.5)):
        for layers in (6, 24, 50):
            model_update = {"decoder": 1e-3 * layers**exponent, "encoder": 1.0}  # the figure shows the decoder's
            probes = {10: {"model_update": model_update}}
            write_figure_run(root, 5, f"{method}{layers}", method, layers, probes, update=10)
