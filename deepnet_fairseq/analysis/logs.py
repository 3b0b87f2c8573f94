"""Reads the log of a fairseq-train run, `--log-format json`, possibly of several attempts one after another."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError
from ..json_text import WRONG_VALUES, parse

LINE = re.compile(r"\| INFO \| train_inner \| (\{.*\})")
DIVERGED = re.compile(r"error: diverged at update|FloatingPointError|Minimum loss scale reached|gradients are Nan/Inf")


@dataclass
class RunLog:
    """updates[i] optimiser updates -> training losses[i], label-smoothed, in bits per token.

    Each loss is the mean of its logged interval; seconds: of training, all attempts together; diverged: was it stopped
    as such, by fairseq or by this package?
    """

    updates: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    diverged: bool = False

    def final_loss(self, last: int = 4) -> float:
        """Mean of the last few logged intervals, bits per token."""
        return sum(self.losses[-last:]) / len(self.losses[-last:])


def read_log(path: Path) -> RunLog:
    """The curve, where a resumed run replaces what it repeats; UserError if there is no log or nothing in it."""
    if not path.is_file():
        raise UserError(f"{path}: no such log")
    text = path.read_text(encoding="utf-8", errors="replace")
    losses: dict[int, float] = {}
    attempts = [0.0]  # seconds of each; fairseq's clock starts anew at a resume
    for match in LINE.finditer(text):
        try:
            row = parse(match.group(1))
            losses[int(row["num_updates"])] = float(row["loss"])
            wall = float(row["wall"])
        except WRONG_VALUES as error:
            raise UserError(f"{path}: a line of progress lacks {error}; train with --log-format json") from error
        if wall < attempts[-1]:
            attempts.append(0.0)
        attempts[-1] = wall
    if not losses:
        raise UserError(f"{path}: no training progress in it (is it a log of --log-format json?)")
    updates = sorted(losses)
    return RunLog(updates, [losses[u] for u in updates], sum(attempts), bool(DIVERGED.search(text)))
