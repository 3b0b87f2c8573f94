"""A training's log without what no report reads: the model's and the settings' listings, and what was probed."""

from __future__ import annotations

import json
import re

from .. import logs, validation
from ..report import model_size, wall_time

KEPT = (logs.LINE, logs.DIVERGED, validation.LINE, wall_time.TRAINING, model_size.LINE)
SETTINGS = re.compile(r"(\| INFO \| fairseq_cli\.train \| (\{|Namespace\()).*")
ROW = re.compile(r"(\| INFO \| (?:train_inner|train|valid|test)[^|]* \| )(\{.*\})")


def short_log(text: str) -> str:
    """The lines with times, losses, size and divergence.

    Settings are cut (the file `command` has them), a row of numbers loses those of probes (probes.jsonl has them).
    """
    lines = [line for line in text.splitlines() if any(pattern.search(line) for pattern in KEPT)]
    return "".join(f"{_short(line)}\n" for line in lines if not line.endswith("("))


def _short(line: str) -> str:
    return ROW.sub(_without_probes, SETTINGS.sub(r"\1...", line))


def _without_probes(match: re.Match) -> str:
    try:
        row = json.loads(match.group(2))
    except ValueError:  # a line cut off where a run was killed
        return match.group()
    return match.group(1) + json.dumps({key: value for key, value in row.items() if "/" not in key})
