"""Read train.log, which fairseq-train writes with `--log-format json`, possibly in several attempts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean

from ..errors import UserError
from ..files import WRONG_VALUES, parse_row

ROW = re.compile(r"\| INFO \| (train_inner|valid) \| (\{.*\})")
READ = {"train_inner": ("num_updates", "loss"), "valid": ("valid_num_updates", "valid_loss", "epoch")}  # of a row
MORE = ("lr", "gnorm", "wall")  # also kept, for readers of a record
MEANT = {"train_inner": "training progress", "valid": "validation loss"}
STAMP = r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
BEGIN = re.compile(STAMP + r".*\| INFO \| fairseq_cli\.train \| (\{|Namespace\()")
# Loggers of a running training; others also log before the next attempt begins, as when processes are started.
RUNNING = re.compile(STAMP + r"[^|]*\| \w+ \| (fairseq_cli\.|fairseq\.trainer|fairseq\.checkpoint|train|valid)")


def short(path: Path) -> dict:
    """Reduce a log to the rows that a record of the run keeps.

    Its entries: attempts: for each, the times of the settings and of the last line of training; train_inner, valid:
    fairseq's rows, shortened, an empty one for a broken line.
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
    return {"attempts": attempts, **rows}


@dataclass(frozen=True)
class Curve:
    """Losses after updates[i], in epoch epochs[i] (from 1; 0 in training): label-smoothed, in bits per token.

    A loss of training is the mean of its logged interval.
    """

    updates: list[int]
    losses: list[float]
    epochs: list[int]

    def final_loss(self, last: int = 4) -> float:
        """Return the mean of the last few losses, bits per token; NaN without one."""
        return fmean(self.losses[-last:]) if self.losses else math.nan


def curve(log: dict, tag: str, where: object) -> Curve:
    """Return the losses of training or validation; a resumed run's replace those that it repeats.

    log: see short(); empty if there is none. tag: a key of READ. where: names the log in errors. Raises a UserError if
    there is no log or no such row in it, or if a row is broken.
    """
    update, loss, *epoch = READ[tag]
    try:
        rows = [(int(row[update]), float(row[loss]), int(row[epoch[0]]) if epoch else 0) for row in log.get(tag, ())]
    except WRONG_VALUES as error:
        raise UserError(f"{where}: a line of {MEANT[tag]} lacks {error}; train with --log-format json") from error
    if not rows:
        lacking = f"no {MEANT[tag]} in it; train with --log-format json" if log else "no such log"
        raise UserError(f"{where}: {lacking}")
    by_update = {row[0]: row for row in rows}
    updates = sorted(by_update)
    return Curve(updates, [by_update[u][1] for u in updates], [by_update[u][2] for u in updates])


def training_hours(log: dict, where: object) -> float | None:
    """Sum the hours from each attempt's settings to the last line of its training; None if the log has no attempt."""
    try:
        times = [[datetime.fromisoformat(time) for time in attempt] for attempt in log.get("attempts", ())]
        return sum((end - start).total_seconds() for start, end in times) / 3600 if times else None
    except WRONG_VALUES as error:
        raise UserError(f"{where}: its times are broken ({error}); record the run again") from error
