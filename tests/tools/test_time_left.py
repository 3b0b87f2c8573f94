"""Tests of the estimated time left of several trainings, by simulated clocks.

TimeLeft takes note of updates by `see`, and estimates by `seconds`: the work that is left, divided by the median of the
speeds during the last tenth of the work. `seconds` is None until two estimates in a row differ by less than a third.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from deepnet_fairseq.tools.time_left import TimeLeft, makespan

UPDATES = 1200  # of a training
EVERY = 25  # updates between two lines of its log
START_UP = 20  # seconds until the first update
UPDATES_A_SECOND = 2
TRAININGS = 2


class Shown(NamedTuple):
    """An estimate of the seconds left that is shown `now` seconds after the start."""

    now: int
    estimate: float


def shown_estimates(jobs: int) -> list[Shown]:
    """Return the estimates that are shown of two trainings, `jobs` at a time, while the first one or both run.

    The trainings are asked every 5 s. Those that run log the same updates at the same time.
    """
    left = TimeLeft(total=TRAININGS * UPDATES, jobs=jobs)
    logged_at = {update: START_UP + update / UPDATES_A_SECOND for update in range(EVERY, UPDATES + 1, EVERY)}
    waiting = [UPDATES] * (TRAININGS - jobs)
    shown = []
    for now in range(0, int(logged_at[UPDATES]), 5):
        logged = [update for update, when in logged_at.items() if when <= now]
        done = logged[-1] if logged else 0
        for number in range(jobs):
            left.see(f"training {number}", done, now)
        estimate = left.seconds(running=[UPDATES - done] * jobs, waiting=waiting)
        if estimate is not None:
            shown.append(Shown(now, estimate))
    return shown


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_number_is_shown_within_a_minute(jobs):
    """The first three lines of a log come after 32.5, 45 and 57.5 s. Only the last two of their estimates agree."""
    first = shown_estimates(jobs)[0]

    assert first.now <= 60


@pytest.mark.parametrize("jobs", [1, 2])
def test_estimates_are_within_a_third_of_the_truth(jobs):
    """An estimate may also lack the start of the training that waits, of which no log tells."""
    one_after_another = TRAININGS // jobs
    end = one_after_another * (START_UP + UPDATES / UPDATES_A_SECOND)

    shown = shown_estimates(jobs)

    assert shown
    for now, estimate in shown:
        truth = end - now
        assert abs(estimate - truth) < truth / 3 + START_UP


def test_no_number_is_shown_before_two_estimates_agree():
    """The second line of the log comes twice as fast as the first, so that the median speed grows to 1.5 times."""
    left = TimeLeft(total=10_000, jobs=1)

    estimates = []
    for work, now in ((0, 0), (25, 64), (50, 64 + 32)):
        left.see("a", work, now)
        estimates.append(left.seconds(running=[10_000 - work], waiting=[]))

    assert estimates == [None, None, None]


class Asked(NamedTuple):
    """The estimate of a training that still runs, and the answers that it has given so far."""

    left: TimeLeft
    answers: list[float | None]


@pytest.fixture
def asked_twice_at_each_line() -> Asked:
    """Provide the estimate for one training of 1,000 updates, asked for twice at each of two lines of its log.

    The speeds are 1 and then 5 updates a second, so that the medians, 1 and 3, do not agree.
    """
    left = TimeLeft(total=1000, jobs=1)
    answers = []
    left.see("a", work=0, now=0)
    for work, now in ((10, 10), (20, 12)):
        left.see("a", work, now)
        answers.append(left.seconds(running=[1000 - work], waiting=[]))
        answers.append(left.seconds(running=[1000 - work], waiting=[]))
    return Asked(left, answers)


def test_an_estimate_asked_for_twice_does_not_count_as_two(asked_twice_at_each_line):
    assert asked_twice_at_each_line.answers == [None] * 4


def test_a_second_estimate_that_agrees_is_shown(asked_twice_at_each_line):
    """A third speed, 10/3, becomes the median, which is near the one before, 3."""
    left = asked_twice_at_each_line.left

    left.see("a", work=30, now=12 + 3)

    assert left.seconds(running=[970], waiting=[]) == pytest.approx(970 / (10 / 3))


def see_steps(left: TimeLeft, first: int, end: int, now: float, seconds: float, pause_at: int | None = None) -> float:
    """Let a training make steps of 10 updates, from `first` to below `end`; return the time of the last step.

    seconds: of a step; pause_at: the step that takes 500 s.
    """
    for work in range(first, end, 10):
        now += 500 if work == pause_at else seconds
        left.see("a", work, now)
        left.seconds(running=[1000 - work], waiting=[])  # two in a row have to agree
    return now


def test_a_pause_does_not_move_the_estimate():
    """A step of 10 updates takes 5 s. One of the 10 steps in the last tenth of the work takes 500 s."""
    left = TimeLeft(total=1000, jobs=1)

    see_steps(left, first=0, end=301, now=0.0, seconds=5, pause_at=290)

    assert left.seconds(running=[700], waiting=[]) == pytest.approx(700 / 2)


def test_a_machine_that_is_slower_from_now_on_moves_the_estimate():
    """From the 310th update on 10 updates take 20 s: all steps in the last tenth of the work."""
    left = TimeLeft(total=1000, jobs=1)
    now = see_steps(left, first=0, end=301, now=0.0, seconds=5)

    see_steps(left, first=310, end=421, now=now, seconds=20)

    assert left.seconds(running=[580], waiting=[]) == pytest.approx(580 / 0.5)


@pytest.mark.parametrize(
    ("running", "waiting", "end"),
    [
        ([5.0, 3.0], [], 5),  # the longer of two
        ([5.0, 3.0], [4.0, 1.0], 7),  # 4 begins at 3, 1 at 5
        ([5.0], [4.0, 4.0], 8),  # 4 begins at once, and the other 4 at 4
    ],
)
def test_the_last_of_two_trainings_at_a_time_ends_as_they_are_scheduled(running, waiting, end):
    """running, waiting: seconds of work; a waiting training begins as soon as one has ended."""
    assert makespan(running, waiting, jobs=2) == end
