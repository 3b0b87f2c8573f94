"""What a life of a training has said: where it was when it died, and the numbers it logged."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

START, VALIDATES, VALIDATED = "Start iterating over samples", 'begin validation on "', "| valid | {"
UPDATE, SAVES, SAVED = "| train_inner | {", "Preparing to save checkpoint", "Saved checkpoint"
WRITTEN, FAILED = "written in the background", "the training goes on"
PHASES = ("start", "training", "validation", "saving")
TIMES = {"wps", "ups", "train_wall", "wall", "gb_free", "cuda_gb_allocated", "cuda_gb_reserved"}


class Log:
    """A file that grows; reading it notes when each line was first seen."""

    def __init__(self, path: Path, background: bool = False) -> None:
        """background: does it go on while it saves?"""
        self.path, self.background, self.end_of_save = path, background, WRITTEN if background else SAVED
        self.text, self.lines, self._offset = "", [], 0  # lines: (moment, line)

    def read(self) -> str:
        """All that is there by now, in lines that are whole."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
            new = new[: new.rfind(b"\n") + 1]
            self._offset += len(new)
            self.text += new.decode()
            self.lines += [(time.monotonic(), line) for line in new.decode().splitlines()]
        return self.text

    def count(self, text: str) -> int:
        return self.read().count(text)

    def phase(self) -> str:
        """One of PHASES: what the training was at when it said its last."""
        last = {text: self.text.rfind(text) for text in (START, UPDATE, VALIDATES, VALIDATED, SAVES)}
        saved = max(self.text.rfind(self.end_of_save), self.text.rfind(FAILED))
        if last[START] < 0 and last[UPDATE] < 0:
            return "start"
        if last[SAVES] > saved and (self.background or last[SAVES] > last[UPDATE]):
            return "saving"
        return "validation" if last[VALIDATES] > max(last[VALIDATED], last[UPDATE], saved) else "training"

    def saved(self) -> int:
        """The last number of updates that it says it has saved; 0 without."""
        saves = self.text.split(SAVES)[1:]  # "... @ 3 updates" and what follows
        return max((int(re.search(r"@ (\d+)", save).group(1)) for save in saves if self.end_of_save in save), default=0)

    def rows(self) -> dict[tuple[str, str], dict]:
        """(train_inner | train | valid, number of updates) -> what was logged, without what depends on the clock."""
        rows = {}
        for tag, row in re.findall(r"\| (train_inner|train|valid) \| (\{.*\})", self.text):
            numbers = json.loads(row)
            updates = next(value for key, value in numbers.items() if key.endswith("num_updates"))
            rows[tag, updates] = {key: v for key, v in numbers.items() if key.removeprefix(f"{tag}_") not in TIMES}
        return rows

    def seconds(self, begin: str, end: str) -> float:
        """The median time from a line with `begin` to the next one with `end`, as seen; 0 without."""
        begun, times = None, []
        for moment, line in self.lines:
            if begun is not None and end in line:
                times.append(moment - begun)
                begun = None
            if begin in line:
                begun = moment
        return sorted(times)[len(times) // 2] if times else 0.0
