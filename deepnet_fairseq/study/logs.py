"""The reader of train.log: what fairseq-train wrote with `--log-format json`, possibly in several attempts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from ..errors import UserError
from ..files import WRONG_VALUES, parse

TRAIN = re.compile(r"\| INFO \| train_inner \| (\{.*\})")
VALID = re.compile(r"\| INFO \| valid \| (\{.*\})")
DIVERGED = re.compile(r"error: diverged at update|FloatingPointError|Minimum loss scale reached|gradients are Nan/Inf")
PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+)")
STAMP = r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
BEGIN = re.compile(STAMP + r".*\| INFO \| fairseq_cli\.train \| (\{|Namespace\()")
# Who speaks once a training runs: others, as what announces the processes, also speak before the next attempt begins.
RUNNING = re.compile(STAMP + r"[^|]*\| \w+ \| (fairseq_cli\.|fairseq\.trainer|fairseq\.checkpoint|train|valid)")
READ = (TRAIN, VALID, DIVERGED, PARAMETERS, RUNNING)  # a line that none of them finds is read by nothing


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


@dataclass(frozen=True)
class Validation:
    """After updates[i], in epoch epochs[i] (from 1): losses[i], label-smoothed, bits per token."""

    updates: list[int]
    epochs: list[int]
    losses: list[float]

    @property
    def end(self) -> int:
        """Updates made at the last validation; 0 without one."""
        return self.updates[-1] if self.updates else 0

    @property
    def final(self) -> float:
        """Loss of the last validation, bits per token; NaN without one."""
        return self.losses[-1] if self.losses else math.nan

    @property
    def once_an_epoch(self) -> bool:
        """Does no epoch have two validations?"""
        return len(set(self.epochs)) == len(self.epochs)


def read_log(path: Path) -> RunLog:
    """The curve, where a resumed run replaces what it repeats; UserError if there is no log or nothing in it."""
    text = _text(path)
    rows = _rows(path, text, TRAIN, {"num_updates": int, "loss": float, "wall": float}, "a line of progress")
    if not rows:
        raise UserError(f"{path}: no training progress in it (is it a log of --log-format json?)")
    losses = {update: loss for update, loss, _ in rows}
    walls = [wall for *_, wall in rows]  # fairseq's clock starts anew at a resume
    seconds = sum(wall for wall, later in zip(walls, [*walls[1:], 0.0], strict=True) if later < wall)
    updates = sorted(losses)
    return RunLog(updates, [losses[u] for u in updates], seconds, bool(DIVERGED.search(text)))


def read_validation(path: Path) -> Validation:
    """The validation losses, where a resumed run replaces what it repeats; UserError if there is none."""
    kinds = {"valid_num_updates": int, "epoch": int, "valid_loss": float}
    found = {update: values for update, *values in _rows(path, _text(path), VALID, kinds, "a validation line")}
    if not found:
        raise UserError(f"{path}: no validation loss in it (train with a validation set and --log-format json)")
    updates = sorted(found)
    return Validation(updates, [found[u][0] for u in updates], [found[u][1] for u in updates])


def training_hours(path: Path) -> float | None:
    """Hours from each attempt's settings to the last line of its training, summed; None if no attempt is in the log."""
    attempts: list[list[datetime]] = []
    for line in _text(path).splitlines() if path.is_file() else ():
        if match := BEGIN.match(line):
            attempts.append([datetime.fromisoformat(match.group(1))])
        elif attempts and (match := RUNNING.match(line)):
            attempts[-1].append(datetime.fromisoformat(match.group(1)))
    seconds = sum((times[-1] - times[0]).total_seconds() for times in attempts)
    return seconds / 3600 if attempts else None


def parameters(path: Path) -> int | None:
    """How many its model has; None if the log does not say it."""
    found = PARAMETERS.search(_text(path)) if path.is_file() else None
    return int(found.group(1).replace(",", "")) if found else None


def _text(path: Path) -> str:
    if not path.is_file():
        raise UserError(f"{path}: no such log")
    return path.read_text(encoding="utf-8", errors="replace")


def _rows(path: Path, text: str, pattern: re.Pattern, kinds: dict[str, Callable], what: str) -> list[tuple]:
    """The numbers called so in every line that the pattern finds; UserError where they are not there."""
    try:
        rows = [parse(match.group(1)) for match in pattern.finditer(text)]
        return [tuple(kind(row[name]) for name, kind in kinds.items()) for row in rows]
    except WRONG_VALUES as error:
        raise UserError(f"{path}: {what} lacks {error}; train with --log-format json") from error
