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

    title: its name in lines of progress; log: the file that fairseq-train writes; layers: their number, by which the
    work of an update is estimated, in any unit that is the same for all trainings; updates: number of updates after
    which it ends, None if unknown, and then the time left is unknown too.
    """

    title: str
    log: Path
    layers: int
    updates: int | None

    def latest(self) -> tuple[int, str]:
        """Return the last update in the log, and its loss as the log prints it; 0 and "-" before the first."""
        if not self.log.exists():
            return 0, "-"
        with open(self.log, "rb") as file:
            file.seek(max(0, self.log.stat().st_size - TAIL))
            logged = LOGGED_UPDATE.findall(file.read().decode(errors="replace"))
        if not logged:
            return 0, "-"
        loss, update = logged[-1]
        return int(update), loss

    def work(self, update: int) -> float:
        """Return the work until an update, in layers x updates; 0 if the number of updates is unknown."""
        return min(update, self.updates or 0) * (self.layers + LAYERS_OF_ENDS)

    @property
    def all_work(self) -> float:
        """The work until the end."""
        return self.work(self.updates or 0)


class Progress:
    """Progress of trainings that run `jobs` at a time.

    trainings: name -> training, in the order in which they are begun; over: function that tells by a name whether that
    training has ended.
    """

    def __init__(self, trainings: Mapping[str, Training], jobs: int, over: Callable[[str], bool]):
        self.trainings = dict(trainings)
        self.over = over
        self.waiting = [name for name in trainings if not over(name)]
        self.running: list[str] = []
        self.ends_known = all(self.trainings[name].updates for name in self.waiting)
        self.time_left = TimeLeft(sum(self.trainings[name].all_work for name in self.waiting), jobs)

    def begin(self, name: str) -> None:
        """Take note that a training begins, or goes on from what its log says."""
        self.waiting.remove(name)
        self.running.append(name)
        self._observe(name)

    def end(self, name: str) -> None:
        """Take note that a training, and what follows it, is over."""
        self.running.remove(name)

    def line(self) -> str | None:
        """Return a line of progress; None while nothing runs."""
        if not self.running:
            return None
        latest = {name: self._observe(name) for name in self.running}
        over = sum(self.over(name) for name in self.trainings)
        parts = [f"{over} of {len(self.trainings)} over"]
        parts += [f"{self.trainings[name].title}: update {at}, loss {loss}" for name, (at, loss) in latest.items()]
        if self.ends_known:
            parts.append(self._time_left_text({name: update for name, (update, _) in latest.items()}))
        return "; ".join(parts)

    def _time_left_text(self, latest: Mapping[str, int]) -> str:
        """Say how long the rest takes; latest: name -> last update, of the trainings that run."""
        running = []
        for name, update in latest.items():
            training = self.trainings[name]
            running.append(training.all_work - training.work(update))
        waiting = [self.trainings[name].all_work for name in self.waiting]
        seconds = self.time_left.seconds(running, waiting)
        if seconds is None:
            return "time left not known yet"
        if seconds == 0:  # translating is no part of the estimate
            return "translates and scores"
        return f"about {duration(seconds)} left"

    def _observe(self, name: str) -> tuple[int, str]:
        """Return the last update of a training and its loss, after telling the estimate of the time left about it."""
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
