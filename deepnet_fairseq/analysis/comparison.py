"""Runs side by side: one row a run."""

from __future__ import annotations

import json
from pathlib import Path

from ..atomic_output import whole
from ..text_table import render
from .curves import plot_losses
from .logs import read_log
from .scoring import bleu


def compare(runs: list[Path], reference: Path, plot: Path) -> str:
    """A table of final training loss (bits a token), sacreBLEU and training time (s); the curves go to `plot`, a PNG.

    A run is a folder with train.log (fairseq-train, JSON) and generated.txt (fairseq-generate); the folder's name is
    the run's, and gets the score as score.json unless it has one. reference: raw, a sentence a line. UserError if a
    file is missing or broken.
    """
    logs = {run.name: read_log(run / "train.log") for run in runs}
    rows = [["method", "updates", "final loss", "BLEU", "train time"]]
    signature = ""
    for run in runs:
        log = logs[run.name]
        score = "-"
        if (run / "generated.txt").exists() or not log.diverged:  # a run may diverge before its first checkpoint
            value, signature = bleu(run / "generated.txt", reference)
            score = f"{value:.2f}"
            _keep(run / "score.json", value, signature)
        loss = f"{log.final_loss():.2f}" + (" (diverged)" if log.diverged else "")
        rows.append([run.name, str(log.updates[-1]), loss, score, f"{log.seconds:.0f} s"])
    plot_losses(logs, plot)
    return f"{render(rows)}\n\nloss: bits per token, label-smoothed, mean of the last intervals; {signature}"


def _keep(path: Path, value: float, signature: str) -> None:
    """For reports and figures; what `deepnet score` wrote there says more, and stays."""
    if not path.exists():
        with whole(path) as part:
            content = {"bleu": round(value, 2), "kind": "sacrebleu", "signature": signature}
            part.write_text(json.dumps(content) + "\n", encoding="utf-8")
