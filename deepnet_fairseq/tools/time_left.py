"""Estimate how long the rest of several trainings takes, from how fast they lately were."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from statistics import median

LATELY = 0.1  # share of the whole work, the last of it that was done, whose speeds count
SETTLED = 1 / 3  # an estimate is shown once two in a row differ by less than this share of the longer one


class TimeLeft:
    """Estimate of the time left for trainings that run `jobs` at a time.

    A speed is the work that one training did between two of its logged updates, per second. An estimate takes the
    median of the speeds during the last tenth of all work, so that the start of a program or a pause of the machine
    does not move it, and what the machine did long ago is forgotten.

    total: work of all trainings, in any unit.
    """

    def __init__(self, total: float, jobs: int):
        self.total = total
        self.jobs = jobs
        self.seen: dict[str, tuple[float, float]] = {}  # training -> its work so far, and when that was first seen
        self.speeds: list[tuple[float, float]] = []  # a speed with, before it, the work of all trainings by then
        self.last: tuple[int, float] | None = None  # how many speeds there were at the last estimate, and that estimate
        self.settled = False  # whether two estimates in a row have been near each other

    def see(self, training: str, work: float, now: float) -> None:
        """Take note that a training has done so much work by now; the first note says where it begins or resumes.

        work: of this training alone, in the unit of `total`; now: seconds of any clock, the same for all notes.
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
    """Return after how much time the last of several trainings ends, if each does one unit of work in a unit of time.

    running: work left of each training that has begun; waiting: work of each that is to come, in their order; jobs:
    number of trainings at a time. A waiting one begins as soon as a place becomes free.
    """
    free_places = jobs - len(running)
    ends = [*running] + [0.0] * free_places  # when each place becomes free; a negative number adds none
    heapq.heapify(ends)  # ends[0] is the smallest
    for work in waiting:
        heapq.heapreplace(ends, ends[0] + work)
    return max(ends)
