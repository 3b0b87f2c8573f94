"""Tests of recorded runs: their content, and the mistakes in them."""

from __future__ import annotations

import json
import math

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.study.logs import curve, read_log, training_hours
from deepnet_fairseq.study.runs import RecordedRun

from ..support.recorded import HEALTHY, STUCK, falling, record
from ..support.reported import log


def test_which_runs_diverged(tmp_path):
    cases = {
        "healthy": (HEALTHY, False),
        "stuck": (STUCK, True),
        "just learning": (falling(6.7), False),
        "just not": (falling(6.9), True),
        "too short to tell": (falling(9.9, last=375), False),
        "no numbers": ({25: 10.0, 50: math.nan}, True),
    }
    for name, (losses, diverged) in cases.items():
        folder = record(tmp_path, 6, name, losses=losses)
        assert RecordedRun(folder).diverged is diverged, name
        (folder / "diverged").touch()
        assert RecordedRun(folder).diverged, name
    folder = record(tmp_path, 6, "stopped", losses=falling(6.0, last=200))
    (folder / "stuck").write_text("stuck at update 200: validation loss 8.05 bits\n")
    run = RecordedRun(folder)
    assert run.stuck and run.diverged and not run.ended_in_nan and run.bleu is None


def test_validation_of_a_resumed_run(tmp_path):
    folder = record(tmp_path, 7, "run", valid={100: (1, 7.0), 200: (2, 6.0)})
    with open(folder / "train.log", "a") as log:
        row = {"epoch": 2, "valid_loss": "5.5", "valid_num_updates": "200"}
        log.write(f"later | INFO | valid | {json.dumps(row)}\n")
    curve = RecordedRun(folder).validation
    assert (curve.updates, curve.epochs, curve.losses) == ([100, 200], [1, 2], [7.0, 5.5])


def test_wall_time_is_that_of_the_attempts(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(
        "2026-11-21 08:00:00 | INFO | fairseq.tasks.text_to_speech | Please install tensorboardX\n"
        + log(("09:00:00", "10:00:00"))
        + "Traceback (most recent call last):\n"
        + "2026-11-21 14:00:00 | INFO | fairseq.distributed.utils | distributed init (rank 0): tcp://localhost:1\n"
        + log(("14:10:00", "16:40:00"))
    )
    assert training_hours(read_log(path), path) == pytest.approx(3.5)
    path.write_text("2026-11-21 09:00:00 | INFO | fairseq_cli.train | Namespace(arch='x')\n")
    assert training_hours(read_log(path), path) == 0
    path.write_text("now | INFO | train_inner | {}\n")
    assert training_hours(read_log(path), path) is None and training_hours({}, path) is None
    with pytest.raises(UserError, match=r"train\.log: no such log"):
        curve({}, "train_inner", path)


GRADIENT = {"gradient_l1": {"decoder.1.ffn.fc2": 1.0}}


@pytest.mark.parametrize(
    "figure, facts, message",
    [
        (3, {"part": "whole", "method": "post_ln"}, "part 'whole': must be one of profile, curve"),
        (3, {"part": "profile", "method": "admin"}, "method 'admin': must be one of post_ln, post_ln_init"),
        (3, {"part": "curve", "method": "post_ln"}, "train.log: no validation loss in it"),
        (4, {}, "series None: must be one of post_ln_no_warmup"),
        (5, {"method": "pre_ln", "update": 5}, "method 'pre_ln': must be one of post_ln, deepnorm"),
        ("depth", {"log": "nothing here\n"}, "train.log: no training progress in it"),
        (6, {"decoder_layers": 6}, "18L-6L; this figure compares N-N models"),
        (7, {"panel": "depth"}, "panel 'depth': must be one of lr, batch, size"),
        ("normformer3", {"probes": {0: {"learned_scale": {}}}}, "no run with gradient_l1; record one with"),
        ("normformer3", {"probes": {0: GRADIENT}}, "no run with learned_scale"),
        ("normformer3", {"probes": {1500: GRADIENT}}, "has no gradient_l1 in the first 1,000 updates"),
        (8, {"method": "nothing"}, "method 'nothing' is unknown"),
        (8, {"encoder_layers": "6"}, "encoder_layers '6': must be a number of layers"),
    ],
)
def test_runs_without_what_the_figure_needs(figure, facts, message, tmp_path):
    record(tmp_path, figure, "run", **facts)
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path), "--figures"])
    assert message in str(stop.value) and str(tmp_path) in str(stop.value) and "\n" not in str(stop.value)


def line(update, loss):
    row = {"loss": str(loss), "num_updates": str(update)}
    return f"2026-01-01 00:00:00 | INFO | train_inner | {json.dumps(row)}\n"


def test_a_resumed_run_is_one_curve(tmp_path):
    """A run that died after update 75 and resumed at 50 gives one curve, with the second values."""
    path = tmp_path / "train.log"
    first = line(25, 9.0) + line(50, 8.0) + line(75, 7.5)
    path.write_text("noise\n" + first + line(75, 7.0) + line(100, 6.0))
    log = curve(read_log(path), "train_inner", path)
    assert (log.updates, log.losses) == ([25, 50, 75, 100], [9.0, 8.0, 7.0, 6.0])
    assert log.final_loss(last=2) == 6.5
