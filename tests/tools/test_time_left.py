"""Tests of the time left of several trainings, by simulated clocks."""

from __future__ import annotations

import pytest

from deepnet_fairseq.tools.time_left import TimeLeft, makespan

UPDATES, EVERY = 1200, 25  # of a training, and between two lines of its log


def estimates(jobs: int, seconds_of, until: float, trainings: int = 2) -> list[tuple[float, float | None]]:
    """Return time and estimate every 5 s, of trainings that run side by side.

    seconds_of(update): when it is logged.
    """
    left = TimeLeft(trainings * UPDATES, jobs)
    logged = [(update, seconds_of(update)) for update in range(EVERY, UPDATES + 1, EVERY)]
    seen = []
    for now in range(0, int(until), 5):
        done = max((update for update, when in logged if when <= now), default=0)
        for number in range(jobs):
            left.see(str(number), done, now)
        waiting = [UPDATES] * (trainings - jobs)
        seen.append((now, left.seconds([UPDATES - done] * jobs, waiting)))
    return seen


@pytest.mark.parametrize("jobs", [1, 2])
def test_first_estimate_is_near_the_end_and_start_up_does_not_count(jobs):
    """The first number shown is within a third of the truth, with 20 s of start-up and 2 updates a second."""
    end = 20 + UPDATES / 2
    whole = end if jobs == 2 else 2 * end
    shown = [(now, value) for now, value in estimates(jobs, lambda update: 20 + update / 2, end) if value is not None]
    assert shown[0][0] <= 60
    assert all(abs(value - (whole - now)) < (whole - now) / 3 + 20 for now, value in shown)


def test_no_number_before_two_estimates_agree():
    """A machine whose speed doubles with each line of the log has no estimate to show."""
    left = TimeLeft(10_000, 1)
    left.see("a", 0, 0)
    assert left.seconds([10_000], []) is None
    for step in range(1, 6):
        left.see("a", 25 * step, sum(64 / 2**k for k in range(step)))
        assert left.seconds([10_000 - 25 * step], []) is None or step > 2
    left = TimeLeft(1000, 1)
    for work, now in ((0, 0), (10, 10), (20, 12)):  # 1, then 3 a second by the median of both
        left.see("a", work, now)
        assert left.seconds([1000 - work], []) is None
        assert left.seconds([1000 - work], []) is None  # the same estimate again says nothing new
    left.see("a", 30, 15)
    assert left.seconds([970], []) == pytest.approx(970 / (10 / 3))


def test_a_pause_does_not_move_it_and_the_past_is_forgotten():
    """One slow interval in the last tenth changes nothing; a machine that is busy from now on does."""
    left = TimeLeft(1000, 1)
    now = 0.0
    for work in range(0, 301, 10):
        now += 5 if work != 290 else 500
        left.see("a", work, now)
        value = left.seconds([1000 - work], [])
    assert value == pytest.approx(700 / 2)
    for work in range(310, 421, 10):
        now += 20
        left.see("a", work, now)
        value = left.seconds([1000 - work], [])
    assert value == pytest.approx(580 / 0.5)


def test_works_end_as_they_are_scheduled():
    assert makespan([5.0, 3.0], [], jobs=2) == 5
    assert makespan([5.0, 3.0], [4.0, 1.0], jobs=2) == 7  # 4 begins at 3, 1 at 5
    assert makespan([5.0], [4.0, 4.0], jobs=2) == 8
