"""Say how far several trainings have come, and how long the rest of them takes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .time_left import TimeLeft

LOGGED_UPDATE = re.compile(r'train_inner \| .*?"loss": "([\d.]+)".*?"num_updates": "(\d+)"')
LAYERS_OF_ENDS = 2  # layers that take as long as embedding and projection together
TAIL = 2**16  # bytes at the end of a log in which the last update is looked for


@dataclass(frozen=True)
class Training:
    """A training whose progress is shown.

    title: its name in lines of progress; log: the file that fairseq-train writes; layers: number of the model's, by
    which the work of an update is estimated; they may be counted in any way that is the same for all trainings;
    updates: number of updates after which it ends, None if unknown, and then the time left is unknown too.
    """

    title: str
    log: Path
    layers: int
    updates: int | None

    def latest(self) -> tuple[int, str]:
        """Return the number of the last update in the log, and its loss as the log prints it.

        They are 0 and "-" before the first update is logged.
        """
        if not self.log.exists():
            return 0, "-"
        with open(self.log, "rb") as file:
            file.seek(max(0, self.log.stat().st_size - TAIL))
            end_of_log = file.read().decode(errors="replace")
        logged = LOGGED_UPDATE.findall(end_of_log)
        if not logged:
            return 0, "-"
        loss, update = logged[-1]
        return int(update), loss

    def work(self, update: int) -> float:
        """Return the work of the updates up to this one, in layers x updates; 0 if the training's end is unknown."""
        return min(update, self.updates or 0) * (self.layers + LAYERS_OF_ENDS)

    @property
    def all_work(self) -> float:
        """The work of the whole training; 0 if its end is unknown."""
        return self.work(self.updates or 0)


class Progress:
    """Progress of trainings that run `jobs` at a time.

    trainings: name -> training, in the order in which they are begun; over: function that takes a name and returns
    whether that training has ended. waiting, running: names of those that are still to be begun or resumed, and of
    those that run.
    """

    def __init__(self, trainings: Mapping[str, Training], jobs: int, over: Callable[[str], bool]):
        self.trainings = dict(trainings)
        self.over = over
        self.waiting = [name for name in trainings if not over(name)]
        self.running: list[str] = []
        self.ends_known = all(self.trainings[name].updates for name in self.waiting)
        self.time_left = TimeLeft(sum(self.trainings[name].all_work for name in self.waiting), jobs)

    def begin(self, name: str) -> None:
        """Take note that a training begins, or goes on from the last update in its log."""
        self.waiting.remove(name)
        self.running.append(name)
        self._observe(name)  # work that was done earlier must not count as done from now on

    def end(self, name: str) -> None:
        """Take note that a training, with its translation and scores if it has any, is over."""
        self.running.remove(name)

    def line(self) -> str | None:
        """Return a line of progress: how many trainings are over, where each running one is, and the time left.

        Return None while nothing runs.
        """
        if not self.running:
            return None
        number_over = sum(self.over(name) for name in self.trainings)
        parts = [f"{number_over} of {len(self.trainings)} over"]

        last_updates = {}
        for name in self.running:
            update, loss = self._observe(name)
            last_updates[name] = update
            parts.append(f"{self.trainings[name].title}: update {update}, loss {loss}")
        if self.ends_known:
            parts.append(self._time_left_text(last_updates))
        return "; ".join(parts)

    def _time_left_text(self, last_updates: Mapping[str, int]) -> str:
        """Say how long all trainings that are not over take; last_updates: name -> update, of those that run."""
        running = []
        for name, update in last_updates.items():
            training = self.trainings[name]
            running.append(training.all_work - training.work(update))
        waiting = [self.trainings[name].all_work for name in self.waiting]
        seconds = self.time_left.seconds(running, waiting)
        if seconds is None:
            return "time left not known yet"
        if seconds == 0:  # all updates are made; what comes after them is no part of the estimate
            return "translates and scores"
        return f"about {duration(seconds)} left"

    def _observe(self, name: str) -> tuple[int, str]:
        """Return the last update of a training and its loss, and note the update for the estimate of the time left."""
        update, loss = self.trainings[name].latest()
        self.time_left.see(name, self.trainings[name].work(update), time.monotonic())
        return update, loss


def duration(seconds: float) -> str:
    """Format a duration as "40 s", "12 min" or "5.2 hours"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 3 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} hours"
