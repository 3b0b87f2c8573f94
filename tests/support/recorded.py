"""Synthetic recorded runs with known numbers."""

from __future__ import annotations

import json
import math

from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.study import figures
from deepnet_fairseq.study.runs import folder_of

from .reported import run


def falling(to, last=400):
    """Return training losses by update: 10 bits at first, `to` over the last intervals."""
    return {25: 10.0} | dict.fromkeys(range(last - 75, last + 1, 25), to)


HEALTHY, STUCK = falling(5.0), falling(8.0)


def record(root, figure, name, method="deepnorm", layers=18, probes=None, losses=None, valid=None, bleu=None, **facts):
    """Write a run's folder. probes: update -> probe -> address -> value; valid: update -> (epoch, loss)."""
    rows = [("train_inner", {"loss": str(l), "num_updates": str(u), "wall": u}) for u, l in (losses or HEALTHY).items()]
    for update, (epoch, loss) in (valid or {}).items():
        rows.append(("valid", {"epoch": epoch, "valid_loss": str(loss), "valid_num_updates": str(update)}))
    parts = {"log": "".join(f"now | INFO | {tag} | {json.dumps(row)}\n" for tag, row in rows), "environment": None}
    parts |= {"score": bleu if bleu is None else {"bleu": bleu, "signature": "s"}, "seed": None}
    folder = run(root, folder_of(figure), name, method, layers, **parts | facts)
    if probes is not None:
        rows = [{"format": 1, "encoder_embed_dim": 64}, *({"update": u} | row for u, row in probes.items())]
        (folder / "probes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def update(value, at=10):
    return {at: {"model_update": {"decoder": value, "encoder": 1.0}}}


def watched(layers=18, updates=3):
    """Return probes of Figure 4: model update u, and mean norms of 8 + u after FFN and 9 after self-attention."""
    layer = range(1, layers + 1)
    return {
        u: {
            "model_update": {"decoder": float(u)},
            "ln_input": {f"encoder.{l}.ffn": 7.0 + u for l in layer}
            | {f"decoder.{l}.ffn": 9.0 + u for l in layer}
            | {f"{stack}.{l}.self_attn": 9.0 for stack in ("encoder", "decoder") for l in layer}
            | {"decoder.layer_norm": 99.0, "decoder.1.encoder_attn": 99.0},
            "gradient_norm": {f"decoder.{l}": (l + u) / 100 for l in range(1, layers + 1)}
            | {"decoder.1.ffn.fc1": 99.0},
        }
        for u in range(updates)
    }


def every_figure(root):
    """Write one or several runs for each figure."""
    for method in ("post_ln", "post_ln_init"):
        for layers in (6, 18):
            norms = {f"decoder.{l}": l / 10 for l in range(1, layers + 1)}
            probes = {0: {"gradient_norm": norms}}
            record(root, 3, f"profile-{method}-{layers}", method, layers, probes, part="profile")
        record(root, 3, f"curve-{method}", method, valid={100: (1, 8.0), 200: (2, 6.5)}, part="curve")
    for series in figures.FIGURE4:
        record(root, 4, series, "post_ln", probes=watched(), series=series)
    for method, exponent in (("post_ln", 1.1), ("deepnorm", 0.5)):
        for layers in (6, 24, 50):
            record(root, 5, f"{method}{layers}", method, layers, update(1e-3 * layers**exponent), update=10)
    for method in METHODS:
        record(root, 6, method, method, 6, bleu=30.0)
    record(root, 6, "deep", "post_ln", 50, losses=STUCK, bleu=0.4)
    for panel in figures.FIGURE7:
        for value in ("1e-3", "5e-4"):
            record(root, 7, f"{panel}{value}", valid={100: (1, 7.0), 200: (1, 5.0)}, panel=panel, value=value)
    for layers in (6, 10, 50):
        record(root, 8, f"{layers}", layers=layers, bleu=20 + 5 * math.log10(2 * layers))
