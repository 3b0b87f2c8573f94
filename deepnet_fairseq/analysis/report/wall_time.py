"""How long a training took, by the times in its log."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

STAMP = r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
BEGIN = re.compile(STAMP + r".*\| INFO \| fairseq_cli\.train \| (\{|Namespace\()")
# Who speaks once a training runs: others, as what announces the processes, also speak before the next attempt begins.
TRAINING = re.compile(STAMP + r"[^|]*\| \w+ \| (fairseq_cli\.|fairseq\.trainer|fairseq\.checkpoint|train|valid)")


def training_hours(log: Path) -> float | None:
    """Hours from each attempt's settings to the last line of its training, summed; None if no attempt is in the log."""
    if not log.is_file():
        return None
    attempts: list[list[datetime]] = []
    with open(log, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if match := BEGIN.match(line):
                attempts.append([_time(match)])
            elif attempts and (match := TRAINING.match(line)):
                attempts[-1].append(_time(match))
    seconds = sum((times[-1] - times[0]).total_seconds() for times in attempts)
    return seconds / 3600 if attempts else None


def _time(match: re.Match) -> datetime:
    return datetime.fromisoformat(match.group(1))
