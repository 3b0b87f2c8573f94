"""Tests of recorded runs: what their logs say, and runs that lack what a figure needs."""

from __future__ import annotations

import json
import math

import pytest

from deepnet_fairseq.study.figures import redraw
from deepnet_fairseq.study.logs import curve, read_log, training_hours
from deepnet_fairseq.study.runs import RecordedRun

from ..support.errors import assert_refused, refused
from ..support.recorded import HEALTHY, STUCK, losses_falling_to, write_figure_run
from ..support.reported import train_log

# Which runs diverged.

LOSSES = {  # case -> (losses of training, whether the run diverged)
    "healthy": (HEALTHY, False),
    "stuck": (STUCK, True),
    "just learning": (losses_falling_to(6.7), False),
    "just not learning": (losses_falling_to(6.9), True),
    "too short to tell": (losses_falling_to(9.9, last=375), False),
    "no numbers": ({25: 10.0, 50: math.nan}, True),
}


@pytest.mark.parametrize("case", LOSSES)
def test_a_run_diverged_by_its_losses(case, tmp_path):
    losses, diverged = LOSSES[case]
    folder = write_figure_run(tmp_path, 6, "run", losses=losses)

    assert RecordedRun(folder).diverged is diverged


@pytest.mark.parametrize("case", LOSSES)
def test_a_run_diverged_by_its_mark_whatever_its_losses(case, tmp_path):
    losses, _ = LOSSES[case]
    folder = write_figure_run(tmp_path, 6, "run", losses=losses)
    (folder / "diverged").touch()

    assert RecordedRun(folder).diverged


def test_a_run_that_was_stopped_as_stuck_diverged_without_nan(tmp_path):
    folder = write_figure_run(tmp_path, 6, "stopped", losses=losses_falling_to(6.0, last=200))
    (folder / "stuck").write_text("stuck at update 200: validation loss 8.05 bits\n")

    run = RecordedRun(folder)

    assert run.stuck
    assert run.diverged
    assert not run.ended_in_nan
    assert run.bleu is None


# Logs of trainings that were interrupted.


def test_a_later_validation_of_an_update_replaces_the_earlier(tmp_path):
    folder = write_figure_run(tmp_path, 7, "run", valid={100: (1, 7.0), 200: (2, 6.0)})
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
    """It died after update 75 and resumed at 50; the second values count."""
    path = tmp_path / "train.log"
    first = line_of_log(25, 9.0) + line_of_log(50, 8.0) + line_of_log(75, 7.5)
    second = line_of_log(75, 7.0) + line_of_log(100, 6.0)
    path.write_text("noise\n" + first + second)

    losses = curve(read_log(path), "train_inner", path)

    assert losses.updates == [25, 50, 75, 100]
    assert losses.losses == [9.0, 8.0, 7.0, 6.0]
    assert losses.final_loss(last=2) == 6.5


def test_wall_time_is_that_of_the_attempts(tmp_path):
    """Time between attempts does not count, nor what other programs log."""
    path = tmp_path / "train.log"
    path.write_text(
        "2026-11-21 08:00:00 | INFO | fairseq.tasks.text_to_speech | Please install tensorboardX\n"
        + train_log(("09:00:00", "10:00:00"))
        + "Traceback (most recent call last):\n"
        + "2026-11-21 14:00:00 | INFO | fairseq.distributed.utils | distributed init (rank 0): tcp://localhost:1\n"
        + train_log(("14:10:00", "16:40:00"))
    )

    assert training_hours(read_log(path), path) == pytest.approx(3.5)


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
    with refused(tmp_path / "train.log"):
        curve({}, "train_inner", tmp_path / "train.log")


# Runs without what the figure needs.

GRADIENT = {"gradient_l1": {"decoder.1.ffn.fc2": 1.0}}
WRONG_FACTS = [  # figure, facts of a run, words of the refusal: what is wrong, and some of what would be right
    (3, {"part": "whole", "method": "post_ln"}, ("part", "whole", "profile", "curve")),
    (3, {"part": "profile", "method": "admin"}, ("method", "admin", "post_ln", "post_ln_init")),
    (4, {}, ("series", "None", "post_ln_no_warmup")),
    (5, {"method": "pre_ln", "update": 5}, ("method", "pre_ln", "post_ln", "deepnorm")),
    (6, {"decoder_layers": 6}, ("18L-6L",)),
    (7, {"panel": "depth"}, ("panel", "depth", "lr", "batch", "size")),
    (8, {"method": "nothing"}, ("method", "nothing", "`deepnet methods`")),
    (8, {"encoder_layers": "6"}, ("encoder_layers", "'6'")),
]


@pytest.mark.parametrize(("figure", "facts", "words"), WRONG_FACTS)
def test_facts_that_the_figure_does_not_know_are_refused(figure, facts, words, tmp_path):
    folder = write_figure_run(tmp_path, figure, "run", **facts)

    with refused(folder / "run.json") as caught:
        redraw(tmp_path, figure, tmp_path)

    for word in words:
        assert word in caught.value.way_out


@pytest.mark.parametrize(
    ("figure", "facts", "lacking"),
    [(3, {"part": "curve", "method": "post_ln"}, "validation"), ("depth", {"log": "nothing here\n"}, "training")],
)
def test_logs_without_the_losses_that_the_figure_shows_are_refused(figure, facts, lacking, tmp_path):
    folder = write_figure_run(tmp_path, figure, "run", **facts)

    with refused(folder / "train.log") as caught:
        redraw(tmp_path, figure, tmp_path)

    assert lacking in caught.value.way_out


@pytest.mark.parametrize(
    ("figure", "probes", "lacking"),
    [("normformer3", {"learned_scale": {}}, "gradient_l1"), ("normformer4", GRADIENT, "learned_scale")],
)
def test_runs_without_the_probe_that_the_figure_shows_are_refused(figure, probes, lacking, tmp_path):
    folder = write_figure_run(tmp_path, figure, "run", probes={0: probes})

    with refused(folder.parent) as caught:
        redraw(tmp_path, figure, tmp_path)

    assert f"--deepnet-probe {lacking}" in caught.value.way_out


def test_gradients_probed_too_late_are_refused(tmp_path):
    folder = write_figure_run(tmp_path, "normformer3", "run", probes={1500: GRADIENT})

    with refused(folder / "probes.jsonl") as caught:
        redraw(tmp_path, "normformer3", tmp_path)

    assert "gradient_l1" in caught.value.way_out
    assert "1,000" in caught.value.way_out


def test_the_command_refuses_in_one_line(tmp_path):
    folder = write_figure_run(tmp_path, 4, "run")

    assert_refused(folder / "run.json", "report", tmp_path, "--figures")
