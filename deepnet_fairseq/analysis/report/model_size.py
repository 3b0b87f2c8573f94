"""How many parameters a run's model has."""

from __future__ import annotations

import re

from ..recorded_run import RecordedRun

LINE = re.compile(r"num\. shared model params: ([\d,]+)")


def parameters(run: RecordedRun) -> int | None:
    """By run.json or the training's log; None if neither says it, as where fairseq counts one of several shards."""
    known, log, command = run.facts.get("parameters"), run.folder / "train.log", run.folder / "command"
    if isinstance(known, int):
        return known
    if not log.is_file() or (command.is_file() and "fully_sharded" in command.read_text(errors="replace")):
        return None
    with open(log, encoding="utf-8", errors="replace") as lines:
        found = next((match for line in lines if (match := LINE.search(line))), None)
    return int(found.group(1).replace(",", "")) if found else None
