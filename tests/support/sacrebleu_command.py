"""Scores of sacreBLEU's command, the peer of `deepnet score`."""

from __future__ import annotations

import json
from pathlib import Path

from .helpers import run

KEYS = ("score", "confidence_mean", "confidence_var", "signature")  # of the command's JSON


def scores_of_sacrebleu(folder: Path, translations: list[str], references: list[str], *flags: str) -> list[list]:
    """Return score, mean and half interval of 1,000 bootstrap samples, and signature, of each metric.

    folder: for the files with the text. flags: as "-m", "bleu", "chrf", which name the metrics, BLEU by default.
    """
    (folder / "ref").write_text("\n".join(references) + "\n")
    (folder / "hyp").write_text("\n".join(translations) + "\n")
    files = (folder / "ref", "-i", folder / "hyp")
    printed = run("-m", "sacrebleu", *files, "--confidence", "-w", "2", *flags).stdout

    scores = json.loads(printed)
    if not isinstance(scores, list):  # of a single metric
        scores = [scores]
    return [[score[key] for key in KEYS] for score in scores]


def entry(score: dict) -> list:
    """Return the same of a metric's entry in score.json."""
    return [score["score"], score["mean"], score["ci"], score["signature"]]
