"""Tests of the line of progress of several trainings: what it reads from their logs, and the time left."""

from __future__ import annotations

import json

import pytest

from deepnet_fairseq.tools import progress
from deepnet_fairseq.tools.progress import Progress, Training

UPDATES = 400
EVERY = 20  # updates between two lines of a log
UPDATES_A_SECOND = 2.0


class Clock:
    """A clock of simulated seconds, in place of the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def log_update(training: Training, update: int, loss: str) -> None:
    """Append a line to the training's log as fairseq-train writes it with --log-format json."""
    row = json.dumps({"epoch": 1, "loss": loss, "num_updates": str(update)})
    with open(training.log, "a", encoding="utf-8") as log:
        log.write(f"2026-11-27 10:00:00 | INFO | train_inner | {row}\n")


def training_of(folder, updates: int | None = UPDATES) -> Training:
    return Training(title="6L pre_ln", log=folder / "log", layers=6, updates=updates)


def test_nothing_is_shown_before_a_training_runs(tmp_path):
    shown = Progress({"a": training_of(tmp_path)}, jobs=1, over=lambda name: False)

    assert shown.line() is None


def test_the_line_has_the_last_update_and_loss_of_each_running_training(tmp_path):
    running = training_of(tmp_path)
    shown = Progress({"a": running}, jobs=1, over=lambda name: False)
    shown.begin("a")

    log_update(running, 20, loss="8.125")
    log_update(running, 40, loss="7.5")

    assert "6L pre_ln: update 40, loss 7.5" in shown.line()


def test_the_time_left_is_that_of_the_updates_to_come(tmp_path, clock):
    running = training_of(tmp_path)
    shown = Progress({"a": running}, jobs=1, over=lambda name: False)
    shown.begin("a")

    for update in range(EVERY, 201, EVERY):
        clock.now = update / UPDATES_A_SECOND
        log_update(running, update, loss="7")
        line = shown.line()

    assert line.endswith(f"about {(UPDATES - 200) / UPDATES_A_SECOND / 60:.0f} min left")  # 100 s


def test_a_training_that_waits_counts_for_the_time_left(tmp_path, clock):
    running = training_of(tmp_path)
    waiting = Training(title="18L pre_ln", log=tmp_path / "other", layers=18, updates=UPDATES)
    shown = Progress({"a": running, "b": waiting}, jobs=1, over=lambda name: False)
    shown.begin("a")

    for update in range(EVERY, 201, EVERY):
        clock.now = update / UPDATES_A_SECOND
        log_update(running, update, loss="7")
        line = shown.line()

    # an update of 18 layers takes (18 + 2) / (6 + 2) times as long as one of 6; embedding and projection count for 2
    seconds = (200 + UPDATES * 20 / 8) / UPDATES_A_SECOND
    assert line.endswith(f"about {seconds / 60:.0f} min left")


def test_no_time_left_is_shown_where_an_end_is_unknown(tmp_path):
    endless = training_of(tmp_path, updates=None)
    shown = Progress({"a": endless}, jobs=1, over=lambda name: False)
    shown.begin("a")
    log_update(endless, 20, loss="8")

    assert "left" not in shown.line()


def test_after_the_last_update_a_training_translates(tmp_path, clock):
    running = training_of(tmp_path)
    shown = Progress({"a": running}, jobs=1, over=lambda name: False)
    shown.begin("a")

    for update in range(EVERY, UPDATES + 1, EVERY):
        clock.now = update / UPDATES_A_SECOND
        log_update(running, update, loss="7")
        line = shown.line()

    assert line.endswith("translates and scores")
