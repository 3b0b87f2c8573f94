"""Logs of fairseq-train, and what fairseq-generate prints."""

from __future__ import annotations

import json
import re

from .helpers import USER_DIR

# Flags of fairseq-generate: two beams, and translations of at most five words however long the source is.
TRANSLATE = ("--user-dir", USER_DIR, "--cpu", "--beam", "2", "--max-len-a", "0", "--max-len-b", "5")


def losses(log: str) -> dict[int, float]:
    """Return the training's losses in a log, update -> loss; log: its text, of --log-format json --log-interval 1."""
    logged = {}
    for row in re.findall(r"\| INFO \| train_inner \| (\{.*\})", log):
        numbers = json.loads(row)
        logged[int(numbers["num_updates"])] = float(numbers["loss"])
    return logged


def hypotheses(printed: str) -> dict[int, tuple[float, str]]:
    """Return number of a sentence -> (score, tokens) of its best translation; printed: output of fairseq-generate."""
    best = {}
    for sentence, score, tokens in re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", printed, re.MULTILINE):
        best[int(sentence)] = (float(score), tokens)
    return best
