"""Estimate how long the rest of several trainings takes, from how fast they lately were."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from statistics import median

LATELY = 0.1  # share of the whole work whose speeds count
SETTLED = 1 / 3  # two estimates in a row differ by less than this share of the longer one


class TimeLeft:
    """Estimate of the time left for trainings that run `jobs` at a time.

    A speed is the work that one training did between two of its logged updates, by seconds. An estimate takes the
    median of the speeds of the last tenth of all work: neither the start of a program nor a pause of the machine moves
    it, and what a machine did long ago is forgotten.

    total: work of all trainings, in any unit.
    """

    def __init__(self, total: float, jobs: int):
        self.total = total
        self.jobs = jobs
        self.seen: dict[str, tuple[float, float]] = {}  # training -> its work so far, and when that was first seen
        self.speeds: list[tuple[float, float]] = []  # work of all trainings by then, and a speed
        self.last: tuple[int, float] | None = None  # how many speeds there were at the last estimate, and that estimate
        self.settled = False

    def see(self, training: str, work: float, now: float) -> None:
        """Take note that a training has done so much work. The first note of each says where it begins or resumes.

        now: seconds of any clock, the same for all notes.
        """
        before, when = self.seen.setdefault(training, (work, now))
        if work <= before or now <= when:
            return

        self.seen[training] = (work, now)
        done = sum(work_of_one for work_of_one, _ in self.seen.values())
        speed = (work - before) / (now - when)
        self.speeds.append((done, speed))

    def seconds(self, running: Sequence[float], waiting: Sequence[float]) -> float | None:
        """Estimate the seconds until the last training ends; None until two estimates in a row are near each other.

        running, waiting: the work left of each training that runs, and of each that is to come, in their order.
        """
        if not self.speeds:
            return None
        newest = self.speeds[-1][0]
        speed = median(speed for done, speed in self.speeds if done >= newest - LATELY * self.total)
        estimate = makespan(running, waiting, self.jobs) / speed

        if self.last is None:
            self.last = (len(self.speeds), estimate)
        elif self.last[0] < len(self.speeds):  # without a new speed it would be compared with itself
            _, previous = self.last
            if abs(estimate - previous) < SETTLED * max(estimate, previous):
                self.settled = True
            self.last = (len(self.speeds), estimate)

        return estimate if self.settled else None


def makespan(running: Sequence[float], waiting: Sequence[float], jobs: int) -> float:
    """Return when the last of several works ends, at speed 1, `jobs` at a time.

    running: work left of those that have begun; waiting: work of those to come, of which each begins where a place
    becomes free.
    """
    free_places = jobs - len(running)
    ends = [*running] + [0.0] * free_places  # when each place becomes free; a negative number adds none
    heapq.heapify(ends)
    for work in waiting:
        heapq.heapreplace(ends, ends[0] + work)
    return max(ends)
