"""Read train.log, which fairseq-train writes with `--log-format json`.

A training that was interrupted and resumed has several attempts in one log. A row is a line of the log in which fairseq
prints numbers as JSON; its tag is "train_inner" for progress of the training, or "valid" for a validation.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean

from ..errors import UserError
from ..files import WRONG_VALUES, parse_json_object

ROW = re.compile(r"\| INFO \| (train_inner|valid) \| (\{.*\})")
READ = {  # tag of a row -> keys that curve() reads: number of updates made, loss, and for a validation its epoch
    "train_inner": ("num_updates", "loss"),
    "valid": ("valid_num_updates", "valid_loss", "epoch"),
}
MORE = ("lr", "gnorm", "wall")  # keys that a record also keeps, for people to look at
MEANT = {"train_inner": "training progress", "valid": "validation loss"}  # tag -> its name in error messages
STAMP = r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
BEGIN = re.compile(STAMP + r".*\| INFO \| fairseq_cli\.train \| (\{|Namespace\()")  # an attempt prints its settings
# Loggers of a running training. Lines of others do not count: some stand between two attempts, where nothing trains,
# as when processes are started.
RUNNING = re.compile(STAMP + r"[^|]*\| \w+ \| (fairseq_cli\.|fairseq\.trainer|fairseq\.checkpoint|train|valid)")


def read_log(path: Path) -> dict:
    """Read a log and return the part that a record of the run keeps, as a JSON object.

    "attempts": for each attempt a pair of times, "2024-05-01 12:00:00": when it printed its settings, and when it
    printed its last line as a running training. "train_inner", "valid": lists of the rows with that tag, reduced to the
    keys of READ and MORE; {} for a broken one, as where a resumed training goes on in a line that a killed one began.
    """
    text = path.read_text(encoding="utf-8", errors="replace")

    attempts: list[list[str]] = []  # [start, end], whose end moves on with every line of the running training
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
        row = parse_json_object(content)  # {} if it is broken
        kept = {key: row[key] for key in (*READ[tag], *MORE) if key in row}
        rows[tag].append(kept)
    return {"attempts": attempts, **rows}


@dataclass(frozen=True)
class Curve:
    """Losses of training or validation in bits per token, label-smoothed for models that translate.

    losses[i] was logged when updates[i] updates were made; a training loss is the mean over the updates since the one
    logged before. epochs[i]: the epoch of a validation, from 1; 0 for training losses, whose epoch is not read.
    """

    updates: list[int]
    losses: list[float]
    epochs: list[int]

    def final_loss(self, last: int = 4) -> float:
        """Return the mean of the last `last` losses, in bits per token; NaN if there are no losses."""
        return fmean(self.losses[-last:]) if self.losses else math.nan


def curve(log: dict, tag: str, where: object) -> Curve:
    """Return the losses of training or validation, in the order of their updates.

    A resumed run may repeat updates; the later row of two counts. log: what read_log returns, {} if there is no log.
    tag: a key of READ. where: names the log in errors. Raises a UserError if there is no log or no such row in it, or
    if a row is broken.
    """
    key_of_update, key_of_loss, *key_of_epoch = READ[tag]  # of a row of training no epoch is read
    losses: dict[int, float] = {}  # by update
    epochs: dict[int, int] = {}  # by update
    try:
        for row in log.get(tag, ()):
            update = int(row[key_of_update])
            losses[update] = float(row[key_of_loss])
            epochs[update] = int(row[key_of_epoch[0]]) if key_of_epoch else 0
    except WRONG_VALUES as error:
        broken = f"lacks {error}" if isinstance(error, KeyError) else f"is broken ({error})"
        raise UserError(where, f"a line of {MEANT[tag]} {broken}; train with --log-format json") from error

    if not losses:
        lacking = f"no {MEANT[tag]} in it; train with --log-format json" if log else "no such log"
        raise UserError(where, lacking)
    updates = sorted(losses)
    return Curve(updates, losses=[losses[u] for u in updates], epochs=[epochs[u] for u in updates])


def training_hours(log: dict, where: object) -> float | None:
    """Return the hours that all attempts took together, by the times of "attempts"; None if the log has no attempt.

    log: what read_log returns. where: names the log in errors. Raises a UserError if the times are broken.
    """
    try:
        attempts = [_times(attempt) for attempt in log.get("attempts", ())]
        if not attempts:
            return None
        return sum((end - start).total_seconds() for start, end in attempts) / 3600
    except WRONG_VALUES as error:
        raise UserError(where, f"its times are broken ({error}); record the run again") from error


def _times(attempt: list[str]) -> list[datetime]:
    """Parse [start, end] of an attempt, each as "2024-05-01 12:00:00"."""
    return [datetime.fromisoformat(time) for time in attempt]
