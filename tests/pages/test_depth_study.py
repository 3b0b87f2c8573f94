"""Tests of the pages of the depth study and of the check: tables against numbers by hand and against records."""

import math
import re
import subprocess
import sys

import pytest

from ..support.helpers import ROOT
from ..support.programs import import_program

JUDGE = ROOT / "results" / "check" / "judge.py"
RENDER = ROOT / "results" / "depth_study" / "render.py"


@pytest.fixture(scope="module")
def render():
    return import_program(RENDER)


def training(method, layers, rate, loss, seed=1, updates=500, **parts):
    """Return a record of a training with that held-out loss, and 9 bits on the training data."""
    run = {"method": method, "encoder_layers": layers, "decoder_layers": layers, "lr": rate, "seed": seed}
    training_losses = ((400, 5), (425, 8), (500, 10))  # the mean of the last two is 9
    rows = [{"num_updates": str(update), "loss": str(loss)} for update, loss in training_losses]
    log = {"train_inner": rows, "valid": [{"valid_loss": "1.0"}, {"valid_loss": str(loss)}]}
    return {"name": "a", "run": run | {"updates": updates}, "log": log} | parts


DIVERGED = training("pre_ln", 6, 0.001, 7.0, diverged="at update 7", check={"verdict": "at risk"})
STUCK = training("pre_ln", 6, 0.002, 8.95, check={"verdict": "stable"})  # no better than guessing
TRAINED = training("pre_ln", 6, 0.004, 7.0, check={"verdict": "stable"})


@pytest.mark.parametrize("words", [(RENDER, "--check"), (JUDGE, "render", "--check")], ids=["depth_study", "check"])
def test_a_page_is_that_of_its_records(words):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("record", [DIVERGED, STUCK], ids=["diverged", "no better than guessing"])
def test_the_loss_of_a_failed_training_is_infinite(record, render):
    assert math.isinf(render.held_out_loss(record))


def test_the_loss_of_a_training_that_learnt_is_finite(render):
    assert not math.isinf(render.held_out_loss(TRAINED))


def test_the_early_loss_is_a_mean_of_the_last_logged_ones(render):
    assert render.early_loss(TRAINED) == 9


def test_verdicts_count_warnings_of_failures_and_of_trainings_that_learnt(render):
    summary = render.verdicts([DIVERGED, STUCK, TRAINED])

    assert re.findall(r"\d+ of \d+", summary) == ["1 of 2", "0 of 1"]


def test_a_training_that_ended_early_is_stuck_at_its_rate_beside_the_long_warm_up(render):
    ended = training("deepnorm", 6, 0.001, 7.0, stuck="at update 375")
    ended["log"]["train_inner"] = []
    with_long_warm_up = training("deepnorm", 6, 0.001, 6.0, updates=3000)

    table = render.warm_up([ended, with_long_warm_up])

    assert table.splitlines()[2] == "| 6L-6L | DeepNorm | 0.001 | stuck | 9.00 |"


def judged(records, verdict, failed):
    return {"records": records, "verdict": verdict, "failed": failed}


def test_the_check_s_warnings_of_failures_and_false_alarms_are_counted_by_records():
    """A warning is any verdict but stable; failures and trainings that learnt are counted apart, and in all."""
    records = [
        judged("a", "stable", failed=False),
        judged("a", "at risk", failed=False),
        judged("a", "diverging", failed=True),
        judged("a", "stable", failed=True),
        judged("a", "at risk", failed=True),
        judged("b", "stable", failed=True),
    ]

    rows = import_program(JUDGE).counts(records).splitlines()[2:]

    assert rows == ["| a | 2 of 3 | 1 of 2 |", "| b | 0 of 1 | 0 of 0 |", "| all | 2 of 4 | 1 of 2 |"]
