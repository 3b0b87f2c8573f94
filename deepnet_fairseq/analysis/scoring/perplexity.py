"""Perplexity of language models, as fairseq-eval-lm and, for masked ones, fairseq-validate logged it."""

from __future__ import annotations

import re
from pathlib import Path

from ...errors import UserError
from ...json_text import WRONG_VALUES, parse
from .generated import read_text

KIND = "perplexity"
CAUSAL = re.compile(r"Loss \(base 2\): (\S+), Perplexity: ")
SPEED = re.compile(r"Evaluated (\d[\d,]{0,20}) tokens in (\d+\.?\d*)s")
MASKED = re.compile(r"\| INFO \| (\S+) \| (\{.*_loss.*\})$", re.MULTILINE)
HIGHEST = 100.0  # bits a token; a model that knows nothing is at log2 of its vocabulary


def perplexity(path: Path) -> dict:
    """The content of score.json: perplexity a token, and the loss behind it in bits.

    path: a log of fairseq-eval-lm or of `fairseq-validate --log-format json`, or a folder of such logs SUBSET.txt,
    whose numbers then stand under sets.SUBSET. UserError if a log has no loss, or one that is not finite.
    """
    if not path.is_dir():
        return {"kind": KIND} | _of_log(path)
    found = {log.stem: _of_log(log) for log in sorted(path.glob("*.txt"))}
    if not found:
        raise UserError(f"{path}: holds no log of an evaluation, SUBSET.txt")
    return {"kind": KIND, "sets": found}


def _of_log(path: Path) -> dict:
    """Of the last evaluation in it."""
    text = read_text(path)
    losses = CAUSAL.findall(text) or [_masked(tag, row) for tag, row in MASKED.findall(text)]
    try:
        loss = float(losses[-1])
    except (IndexError, TypeError, ValueError):
        raise UserError(
            f"{path}: has no loss of fairseq-eval-lm or fairseq-validate --log-format json; evaluate again"
        ) from None
    if not 0 <= loss <= HIGHEST:
        raise UserError(f"{path}: a loss of {loss} bits has no perplexity; was this model trained?")
    speed = SPEED.findall(text)
    more = {"tokens": int(speed[-1][0].replace(",", "")), "seconds": float(speed[-1][1])} if speed else {}
    return {"perplexity": round(2**loss, 2), "loss": round(loss, 4)} | more


def _masked(tag: str, row: str) -> str | None:
    """The loss in a line of progress; None where there is none."""
    try:
        return parse(row)[f"{tag}_loss"]
    except WRONG_VALUES:
        return None
