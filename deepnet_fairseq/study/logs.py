"""The reader of train.log: what fairseq-train wrote with `--log-format json`, possibly in several attempts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ..errors import UserError
from ..files import WRONG_VALUES, parse_row

ROW = re.compile(r"\| INFO \| (train_inner|valid) \| (\{.*\})")
READ = {  # of a row, by who logged it
    "train_inner": {"num_updates": int, "loss": float, "wall": float},
    "valid": {"valid_num_updates": int, "epoch": int, "valid_loss": float},
}
MORE = ("lr", "gnorm")  # kept besides, for who reads a record
MEANT = {"train_inner": "training progress", "valid": "validation loss"}
DIVERGED = re.compile(r"error: diverged at update|FloatingPointError|Minimum loss scale reached|gradients are Nan/Inf")
STAMP = r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
BEGIN = re.compile(STAMP + r".*\| INFO \| fairseq_cli\.train \| (\{|Namespace\()")
# Who speaks once a training runs: others, as what announces the processes, also speak before the next attempt begins.
RUNNING = re.compile(STAMP + r"[^|]*\| \w+ \| (fairseq_cli\.|fairseq\.trainer|fairseq\.checkpoint|train|valid)")


def short(path: Path) -> dict:
    """Return what is kept of a log, in the shape that a record of the run has it in.

    attempts: times of the settings and of the last line of training, of each. diverged: was it stopped as such, by
    fairseq or by this package? train_inner, valid: fairseq's rows, cut; an empty one for a line that is broken.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    attempts: list[list[str]] = []
    for line in text.splitlines():
        if match := BEGIN.match(line):
            attempts.append([match.group(1)] * 2)
        elif attempts and (match := RUNNING.match(line)):
            attempts[-1][1] = match.group(1)
    rows: dict[str, list[dict]] = {tag: [] for tag in READ}
    for tag, content in ROW.findall(text):
        row = parse_row(content)
        rows[tag].append({key: row[key] for key in (*READ[tag], *MORE) if key in row})
    return {"attempts": attempts, "diverged": bool(DIVERGED.search(text)), **rows}


@dataclass(frozen=True)
class RunLog:
    """updates[i] optimiser updates -> training losses[i], label-smoothed, in bits per token.

    Each loss is the mean of its logged interval; seconds: of training, all attempts together; diverged: was it stopped
    as such, by fairseq or by this package?
    """

    updates: list[int]
    losses: list[float]
    seconds: float
    diverged: bool

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
    def final(self) -> float:
        """Loss of the last validation, bits per token; NaN without one."""
        return self.losses[-1] if self.losses else math.nan


def training_curve(log: dict, where: object) -> RunLog:
    """The curve, where a resumed run replaces what it repeats; UserError if there is no log or nothing in it.

    log: see short(); empty if there is none. where: names it in errors.
    """
    rows = _numbers(log, "train_inner", where)
    losses = {update: loss for update, loss, _ in rows}
    walls = [wall for *_, wall in rows]  # fairseq's clock starts anew at a resume
    seconds = sum(wall for wall, later in zip(walls, [*walls[1:], 0.0], strict=True) if later < wall)
    updates = sorted(losses)
    return RunLog(updates, [losses[u] for u in updates], seconds, bool(log.get("diverged")))


def validation_curve(log: dict, where: object) -> Validation:
    """The validation losses, where a resumed run replaces what it repeats; UserError if there is none."""
    found = {update: values for update, *values in _numbers(log, "valid", where)}
    updates = sorted(found)
    return Validation(updates, [found[u][0] for u in updates], [found[u][1] for u in updates])


def training_hours(log: dict, where: object) -> float | None:
    """Hours from each attempt's settings to the last line of its training, summed; None if no attempt is in the log."""
    try:
        times = [[datetime.fromisoformat(time) for time in attempt] for attempt in log.get("attempts", ())]
        return sum((end - start).total_seconds() for start, end in times) / 3600 if times else None
    except WRONG_VALUES as error:
        raise UserError(f"{where}: its times are broken ({error}); record the run again") from error


def _numbers(log: dict, tag: str, where: object) -> list[tuple]:
    """READ of every row; UserError where one is not there, or no row is."""
    try:
        rows = [tuple(number(row[name]) for name, number in READ[tag].items()) for row in log.get(tag, ())]
    except WRONG_VALUES as error:
        raise UserError(f"{where}: a line of {MEANT[tag]} lacks {error}; train with --log-format json") from error
    if not rows:
        lacking = f"no {MEANT[tag]} in it; train with --log-format json" if log else "no such log"
        raise UserError(f"{where}: {lacking}")
    return rows
