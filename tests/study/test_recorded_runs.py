"""Tests of recorded runs: what their logs say, and runs that lack what a figure needs."""

from __future__ import annotations

import json
import math
from typing import NamedTuple

import pytest

from deepnet_fairseq.study.figures import redraw
from deepnet_fairseq.study.logs import curve, read_log, training_hours
from deepnet_fairseq.study.runs import RecordedRun

from ..support.errors import assert_refused, refused
from ..support.recorded import HEALTHY, STUCK, losses_falling_to, write_figure_run
from ..support.reported import train_log

# Which runs diverged.


class Judged(NamedTuple):
    """Losses of training by update, and whether a run with these losses counts as diverged."""

    losses: dict[int, float]
    diverged: bool


# A run has diverged if the mean of its last four losses is not finite. It has diverged too if after 400 updates or more
# this mean is still above 68% of the first loss, 10 bits.
JUDGED = {
    "healthy": Judged(HEALTHY, diverged=False),
    "stuck": Judged(STUCK, diverged=True),
    "just learning": Judged(losses_falling_to(6.7), diverged=False),
    "just not learning": Judged(losses_falling_to(6.9), diverged=True),
    "too short to tell": Judged(losses_falling_to(9.9, last=375), diverged=False),
    "no numbers": Judged({25: 10.0, 50: math.nan}, diverged=True),
}


@pytest.mark.parametrize("case", JUDGED)
def test_whether_a_run_diverged_is_judged_by_its_losses(case, tmp_path):
    folder = write_figure_run(tmp_path, 6, "run", losses=JUDGED[case].losses)

    assert RecordedRun(folder).diverged is JUDGED[case].diverged


@pytest.mark.parametrize("case", JUDGED)
def test_a_run_with_the_mark_diverged_has_diverged_whatever_its_losses(case, tmp_path):
    folder = write_figure_run(tmp_path, 6, "run", losses=JUDGED[case].losses)
    (folder / "diverged").touch()

    assert RecordedRun(folder).diverged


def test_a_run_with_the_mark_stuck_has_diverged_but_not_in_nan(tmp_path):
    """By its losses alone the run would not count as diverged. It has no BLEU because it was not scored."""
    folder = write_figure_run(tmp_path, 6, "stopped", losses=losses_falling_to(6.0, last=200))
    (folder / "stuck").write_text("stuck at update 200: validation loss 8.05 bits\n")

    run = RecordedRun(folder)

    assert run.stuck
    assert run.diverged
    assert not run.ended_in_nan
    assert run.bleu is None


# Logs of trainings that were interrupted.


def test_a_later_validation_of_an_update_replaces_the_earlier(tmp_path):
    epochs_and_losses = {100: (1, 7.0), 200: (2, 6.0)}  # by update
    folder = write_figure_run(tmp_path, 7, "run", valid=epochs_and_losses)
    later = {"epoch": 2, "valid_loss": "5.5", "valid_num_updates": "200"}
    with open(folder / "train.log", "a") as log:
        log.write(f"later | INFO | valid | {json.dumps(later)}\n")

    validation = RecordedRun(folder).validation

    assert validation.updates == [100, 200]
    assert validation.epochs == [1, 2]
    assert validation.losses == [7.0, 5.5]


def line_of_log(update, loss):
    row = {"loss": str(loss), "num_updates": str(update)}
    return f"2026-01-01 00:00:00 | INFO | train_inner | {json.dumps(row)}\n"


def test_a_run_that_died_and_resumed_has_one_curve(tmp_path):
    """The run died after update 75 and resumed at 50, so that update 75 is logged twice. The second loss counts."""
    path = tmp_path / "train.log"
    first_attempt = line_of_log(25, 9.0) + line_of_log(50, 8.0) + line_of_log(75, 7.5)
    second_attempt = line_of_log(75, 7.0) + line_of_log(100, 6.0)
    path.write_text("noise\n" + first_attempt + second_attempt)

    losses = curve(read_log(path), "train_inner", path)

    assert losses.updates == [25, 50, 75, 100]
    assert losses.losses == [9.0, 8.0, 7.0, 6.0]
    assert losses.final_loss(last=2) == 6.5  # the mean of 7 and 6


def test_wall_time_is_the_sum_of_the_attempts(tmp_path):
    """Time between attempts does not count. Lines of loggers other than the training's do not count either."""
    path = tmp_path / "train.log"
    path.write_text(
        "2026-11-21 08:00:00 | INFO | fairseq.tasks.text_to_speech | Please install tensorboardX\n"
        + train_log(("09:00:00", "10:00:00"))
        + "Traceback (most recent call last):\n"
        + "2026-11-21 14:00:00 | INFO | fairseq.distributed.utils | distributed init (rank 0): tcp://localhost:1\n"
        + train_log(("14:10:00", "16:40:00"))
    )

    assert training_hours(read_log(path), path) == pytest.approx(1 + 2.5)


def test_an_attempt_that_did_not_begin_to_train_took_no_time(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("2026-11-21 09:00:00 | INFO | fairseq_cli.train | Namespace(arch='x')\n")

    assert training_hours(read_log(path), path) == 0


def test_wall_time_of_a_log_without_times_is_unknown(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("now | INFO | train_inner | {}\n")

    assert training_hours(read_log(path), path) is None


def test_wall_time_without_a_log_is_unknown(tmp_path):
    assert training_hours({}, tmp_path / "train.log") is None


def test_losses_without_a_log_are_refused(tmp_path):
    path = tmp_path / "train.log"

    with refused(path):
        curve({}, "train_inner", path)


# Runs without what the figure needs.

GRADIENT = {"gradient_l1": {"decoder.1.ffn.fc2": 1.0}}  # what a probe recorded at one update


class WrongFact(NamedTuple):
    """A figure, facts in run.json that are wrong for it, and what the refusal names, such as values that it knows."""

    figure: int
    facts: dict
    named: list[str]


WRONG_FACTS = [
    WrongFact(3, {"part": "whole", "method": "post_ln"}, named=["part", "whole", "profile", "curve"]),
    WrongFact(3, {"part": "profile", "method": "admin"}, named=["method", "admin", "post_ln", "post_ln_init"]),
    WrongFact(4, {}, named=["series", "None", "post_ln_no_warmup"]),
    WrongFact(5, {"method": "pre_ln", "update": 5}, named=["method", "pre_ln", "post_ln", "deepnorm"]),
    WrongFact(5, {"method": "post_ln"}, named=["update", "None"]),
    WrongFact(6, {"decoder_layers": 6}, named=["18L-6L"]),  # figures compare as many layers in both stacks
    WrongFact(7, {"panel": "depth"}, named=["panel", "depth", "lr", "batch", "size"]),
    WrongFact(7, {"panel": "lr"}, named=["value", "lr"]),
    WrongFact(8, {"method": "nothing"}, named=["method", "nothing", "`deepnet methods`"]),
    WrongFact(8, {"encoder_layers": "6"}, named=["encoder_layers", "'6'"]),
]


@pytest.mark.parametrize(("figure", "facts", "named"), WRONG_FACTS)
def test_facts_that_the_figure_does_not_know_are_refused(figure, facts, named, tmp_path):
    folder = write_figure_run(tmp_path, figure, "run", **facts)

    with refused(folder / "run.json") as caught:
        redraw(runs=tmp_path, figure=figure, out=tmp_path)

    for name in named:
        assert name in caught.value.way_out


@pytest.mark.parametrize(
    ("figure", "parts", "lacking"),  # parts: of the run
    [(3, {"part": "curve", "method": "post_ln"}, "validation"), ("depth", {"log": "nothing here\n"}, "training")],
)
def test_logs_without_the_losses_that_the_figure_shows_are_refused(figure, parts, lacking, tmp_path):
    """The log that write_figure_run writes by default has losses of training alone."""
    folder = write_figure_run(tmp_path, figure, "run", **parts)

    with refused(folder / "train.log") as caught:
        redraw(runs=tmp_path, figure=figure, out=tmp_path)

    assert lacking in caught.value.way_out


@pytest.mark.parametrize(
    ("figure", "recorded", "lacking"),
    [("normformer3", {"learned_scale": {}}, "gradient_l1"), ("normformer4", GRADIENT, "learned_scale")],
)
def test_runs_without_the_probe_that_the_figure_shows_are_refused(figure, recorded, lacking, tmp_path):
    folder = write_figure_run(tmp_path, figure, "run", probes={0: recorded})

    with refused(folder.parent) as caught:
        redraw(runs=tmp_path, figure=figure, out=tmp_path)

    assert f"--deepnet-probe {lacking}" in caught.value.way_out


def test_gradients_probed_after_the_first_1000_updates_alone_are_refused(tmp_path):
    """NormFormer's Figure 3 shows the mean over the first 1,000 updates."""
    folder = write_figure_run(tmp_path, "normformer3", "run", probes={1500: GRADIENT})

    with refused(folder / "probes.jsonl") as caught:
        redraw(runs=tmp_path, figure="normformer3", out=tmp_path)

    assert "gradient_l1" in caught.value.way_out
    assert "1,000" in caught.value.way_out


def test_the_command_refuses_in_one_line(tmp_path):
    folder = write_figure_run(tmp_path, 4, "run")  # without its series

    assert_refused(folder / "run.json", "report", tmp_path, "--figures")
