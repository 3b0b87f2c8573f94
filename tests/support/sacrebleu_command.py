"""Scores of sacreBLEU's command, the peer of `deepnet score`."""

from __future__ import annotations

import json
from pathlib import Path

from .helpers import run

KEYS = ("score", "confidence_mean", "confidence_var", "signature")  # of a metric in the command's JSON


def scores_of_sacrebleu(folder: Path, translations: list[str], references: list[str], *flags: str) -> list[list]:
    """Score translations by sacreBLEU's command; return [score, mean, half interval, signature] of each metric.

    Mean and half interval are those of 1,000 bootstrap samples, sacreBLEU's default.

    folder: for the files with the text; flags: further ones, such as "-m", "bleu", "chrf" for other metrics than BLEU
    """
    (folder / "ref").write_text("\n".join(references) + "\n")
    (folder / "hyp").write_text("\n".join(translations) + "\n")
    files = (folder / "ref", "-i", folder / "hyp")
    printed = run("-m", "sacrebleu", *files, "--confidence", "--width", "2", *flags).stdout

    scores = json.loads(printed)
    if not isinstance(scores, list):  # of a single metric
        scores = [scores]
    return [[score[key] for key in KEYS] for score in scores]


def entry_as_list(score: dict) -> list:
    """Return [score, mean, half interval, signature] of a metric's entry in score.json."""
    return [score["score"], score["mean"], score["ci"], score["signature"]]
