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
READ = {  # tag of a row -> keys that are read: updates made, loss, and of a validation its epoch
    "train_inner": ("num_updates", "loss"),
    "valid": ("valid_num_updates", "valid_loss", "epoch"),
}
MORE = ("lr", "gnorm", "wall")  # keys that are also kept, for readers of a record
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
        begin = BEGIN.match(line)
        if begin:
            start = begin.group(1)
            attempts.append([start, start])
        elif attempts:
            running = RUNNING.match(line)
            if running:
                attempts[-1][1] = running.group(1)

    rows: dict[str, list[dict]] = {tag: [] for tag in READ}
    for tag, content in ROW.findall(text):
        row = parse_row(content)
        kept = {key: row[key] for key in (*READ[tag], *MORE) if key in row}
        rows[tag].append(kept)
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
    keys = READ[tag]
    losses: dict[int, float] = {}  # by update, as are epochs; of two rows for one update the later counts
    epochs: dict[int, int] = {}
    try:
        for row in log.get(tag, ()):
            update = int(row[keys[0]])
            losses[update] = float(row[keys[1]])
            epochs[update] = int(row[keys[2]]) if len(keys) > 2 else 0
    except WRONG_VALUES as error:
        raise UserError(f"{where}: a line of {MEANT[tag]} lacks {error}; train with --log-format json") from error

    if not losses:
        lacking = f"no {MEANT[tag]} in it; train with --log-format json" if log else "no such log"
        raise UserError(f"{where}: {lacking}")
    updates = sorted(losses)
    return Curve(updates, losses=[losses[u] for u in updates], epochs=[epochs[u] for u in updates])


def training_hours(log: dict, where: object) -> float | None:
    """Sum the hours from each attempt's settings to the last line of its training; None if the log has no attempt."""
    try:
        attempts = [_times(attempt) for attempt in log.get("attempts", ())]
        if not attempts:
            return None
        return sum((end - start).total_seconds() for start, end in attempts) / 3600
    except WRONG_VALUES as error:
        raise UserError(f"{where}: its times are broken ({error}); record the run again") from error


def _times(attempt: list[str]) -> list[datetime]:
    """Parse the times of an attempt: its start and its end."""
    return [datetime.fromisoformat(time) for time in attempt]
