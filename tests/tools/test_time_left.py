"""Tests of the time left of several trainings, by simulated clocks."""

from __future__ import annotations

import pytest

from deepnet_fairseq.tools.time_left import TimeLeft, makespan

UPDATES, EVERY = 1200, 25  # of a training, and between two lines of its log
START_UP = 20  # seconds until the first update
UPDATES_A_SECOND = 2
TRAININGS = 2


def shown_estimates(jobs: int) -> list[tuple[int, float]]:
    """Return the seconds since the start and the estimate, every 5 s where there is one.

    Of two trainings, `jobs` at a time; those that run log the same updates at the same time.
    """
    left = TimeLeft(TRAININGS * UPDATES, jobs)
    logged_at = {update: START_UP + update / UPDATES_A_SECOND for update in range(EVERY, UPDATES + 1, EVERY)}
    waiting = [UPDATES] * (TRAININGS - jobs)
    shown = []
    for now in range(0, int(logged_at[UPDATES]), 5):
        done = max((update for update, when in logged_at.items() if when <= now), default=0)
        for number in range(jobs):
            left.see(str(number), done, now)
        estimate = left.seconds([UPDATES - done] * jobs, waiting)
        if estimate is not None:
            shown.append((now, estimate))
    return shown


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_number_is_shown_within_a_minute(jobs):
    first, _ = shown_estimates(jobs)[0]

    assert first <= 60


@pytest.mark.parametrize("jobs", [1, 2])
def test_estimates_are_within_a_third_of_the_truth(jobs):
    """Start-up does not count."""
    one_after_another = TRAININGS // jobs
    end = one_after_another * (START_UP + UPDATES / UPDATES_A_SECOND)

    for now, estimate in shown_estimates(jobs):
        truth = end - now
        assert abs(estimate - truth) < truth / 3 + START_UP


def test_no_number_is_shown_before_two_estimates_agree():
    """A machine whose speed doubles with each line of the log has no estimate to show in the first two lines."""
    left = TimeLeft(10_000, 1)
    left.see("a", 0, 0)
    assert left.seconds([10_000], []) is None

    now = 0.0
    for line in (1, 2):
        now += 64 / 2 ** (line - 1)
        left.see("a", 25 * line, now)
        assert left.seconds([10_000 - 25 * line], []) is None


def test_an_estimate_seen_twice_is_no_second_one():
    left = TimeLeft(1000, 1)

    for work, now in ((0, 0), (10, 10), (20, 12)):  # 1, then 3 a second by the median of both
        left.see("a", work, now)
        for _ in range(2):
            assert left.seconds([1000 - work], []) is None

    left.see("a", 30, 15)
    assert left.seconds([970], []) == pytest.approx(970 / (10 / 3))


def see_steps(left: TimeLeft, first: int, end: int, now: float, seconds: float, pause_at: int | None = None) -> float:
    """Let steps of 10 updates pass, from `first` to below `end`; return the time of the last one.

    seconds: of a step; pause_at: the step that takes 500 s.
    """
    for work in range(first, end, 10):
        now += 500 if work == pause_at else seconds
        left.see("a", work, now)
        left.seconds([1000 - work], [])  # estimates build on those that were asked for
    return now


def test_a_pause_does_not_move_the_estimate():
    """One slow interval in the last tenth changes nothing."""
    left = TimeLeft(1000, 1)

    see_steps(left, 0, 301, now=0.0, seconds=5, pause_at=290)

    assert left.seconds([700], []) == pytest.approx(700 / 2)


def test_a_machine_that_is_busy_from_now_on_moves_the_estimate():
    left = TimeLeft(1000, 1)
    now = see_steps(left, 0, 301, now=0.0, seconds=5, pause_at=290)

    see_steps(left, 310, 421, now, seconds=20)

    assert left.seconds([580], []) == pytest.approx(580 / 0.5)


@pytest.mark.parametrize(
    ("running", "waiting", "end"),
    [
        ([5.0, 3.0], [], 5),
        ([5.0, 3.0], [4.0, 1.0], 7),  # 4 begins at 3, 1 at 5
        ([5.0], [4.0, 4.0], 8),
    ],
)
def test_two_jobs_end_as_they_are_scheduled(running, waiting, end):
    assert makespan(running, waiting, jobs=2) == end
