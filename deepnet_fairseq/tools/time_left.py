"""Estimate how long the rest of several trainings takes, from how fast they lately were.

Work is a number in any unit that is the same for all trainings, of which a longer or deeper training has more.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from statistics import median

LATELY = 0.1  # share of the whole work, counted back from what is done by now; only the speeds in it count
SETTLED = 1 / 3  # an estimate is shown once two in a row differ by less than this share of the longer one


class TimeLeft:
    """Estimate of the time left for trainings that run `jobs` at a time.

    A speed is the work that one training did between two of its logged updates, per second. An estimate takes the
    median of the speeds during the last part of the work done, a tenth (LATELY) of `total`, so that the start of a
    program or a pause of the machine does not move it, and what the machine did long ago is forgotten.

    total: work of all trainings together. `see` notes how far a training is, `seconds` estimates.
    """

    def __init__(self, total: float, jobs: int):
        self.total = total
        self.jobs = jobs
        self.seen: dict[str, tuple[float, float]] = {}  # training -> its work so far, and when that was first seen
        self.speeds: list[tuple[float, float]] = []  # (work that all trainings had done by then, speed), in order
        self.last: tuple[int, float] | None = None  # how many speeds there were at the last estimate, and that estimate
        self.settled = False  # whether two estimates in a row have ever been near each other

    def see(self, training: str, work: float, now: float) -> None:
        """Take note that a training has done so much work by now, and of its speed since it had done less.

        The first note of a training says where it begins or resumes, and gives no speed.

        training: its name; work: of this training alone; now: seconds of any clock, the same for all notes.
        """
        earlier_work, earlier = self.seen.setdefault(training, (work, now))
        if work <= earlier_work or now <= earlier:  # no update since then, or no time has passed
            return

        self.seen[training] = (work, now)
        done_by_all = sum(work_of_one for work_of_one, _ in self.seen.values())
        speed = (work - earlier_work) / (now - earlier)
        self.speeds.append((done_by_all, speed))

    def seconds(self, running: Sequence[float], waiting: Sequence[float]) -> float | None:
        """Estimate the seconds until the last training ends; None until two estimates in a row are near each other.

        running: the work left of each training that runs; waiting: the work of each that is to come, in their order.
        """
        if not self.speeds:
            return None
        done_by_now, _ = self.speeds[-1]
        speed = median(speed for done, speed in self.speeds if done >= done_by_now - LATELY * self.total)
        estimate = makespan(running, waiting, self.jobs) / speed

        if self.last is None:
            self.last = (len(self.speeds), estimate)
        else:
            speeds_then, previous = self.last
            # without new speeds the two are near each other anyway, which says nothing
            if len(self.speeds) > speeds_then:
                if abs(estimate - previous) < SETTLED * max(estimate, previous):
                    self.settled = True
                self.last = (len(self.speeds), estimate)

        return estimate if self.settled else None


def makespan(running: Sequence[float], waiting: Sequence[float], jobs: int) -> float:
    """Return after how much time the last of several trainings ends, if each does one unit of work in a unit of time.

    (The makespan of a schedule is the time from its beginning to its end.)

    running: work left of each training that has begun; waiting: work of each that is to come, in their order; jobs:
    number of trainings at a time. A waiting one begins as soon as a place becomes free.
    """
    free_places = jobs - len(running)  # below 0 if more run than `jobs`; [0.0] * free_places is then []
    ends = [*running] + [0.0] * free_places  # when each place becomes free
    heapq.heapify(ends)  # ends[0] is the smallest
    for work in waiting:
        heapq.heapreplace(ends, ends[0] + work)  # the place that becomes free first takes the next one
    return max(ends)
