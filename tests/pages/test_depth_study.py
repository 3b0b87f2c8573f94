"""Tests of two programs that write tables of results: of the depth study, and of `deepnet check` against its outcomes.

A record is what is kept of a training: its settings ("run"), its losses ("log"), and the verdict that `deepnet check`
gave on its setting before ("check"): stable, at risk, or diverging.
"""

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
    """Return the record of a training whose last held-out loss is `loss`, and whose training loss is 9 bits.

    The 9 bits are the mean of updates 401 to 500, the table's measure of the loss after 500 updates. rate: of learning.
    """
    run = {"method": method, "encoder_layers": layers, "decoder_layers": layers, "lr": rate, "seed": seed}
    training_losses = ((400, 5), (425, 8), (500, 10))  # by update; 8 and 10 count
    rows = [{"num_updates": str(update), "loss": str(loss)} for update, loss in training_losses]
    log = {"train_inner": rows, "valid": [{"valid_loss": "1.0"}, {"valid_loss": str(loss)}]}
    return {"name": "a", "run": run | {"updates": updates}, "log": log} | parts


DIVERGED = training("pre_ln", 6, 0.001, 7.0, diverged="at update 7", check={"verdict": "at risk"})
STUCK = training("pre_ln", 6, 0.002, 8.95, check={"verdict": "stable"})  # guessing by word frequency is at 8.917
TRAINED = training("pre_ln", 6, 0.004, 7.0, check={"verdict": "stable"})


@pytest.mark.parametrize("words", [(RENDER, "--check"), (JUDGE, "render", "--check")], ids=["depth_study", "check"])
def test_the_tables_of_a_page_are_those_of_its_records(words):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("record", [DIVERGED, STUCK], ids=["diverged", "no better than guessing"])
def test_the_loss_of_a_failed_training_is_infinite(record, render):
    assert math.isinf(render.held_out_loss(record))


def test_the_loss_of_a_training_that_learnt_is_finite(render):
    assert not math.isinf(render.held_out_loss(TRAINED))


def test_the_early_loss_is_the_mean_of_updates_401_to_500(render):
    assert render.early_loss(TRAINED) == 9


def test_verdicts_count_warnings_of_failures_and_of_trainings_that_learnt(render):
    """DIVERGED was warned of, and STUCK was not; there was no false alarm."""
    summary = render.verdicts([DIVERGED, STUCK, TRAINED])

    of_failures, of_learnt = re.findall(r"\d+ of \d+", summary)
    assert of_failures == "1 of 2"
    assert of_learnt == "0 of 1"


def test_a_training_that_was_stopped_is_stuck_in_the_table_of_warm_ups(render):
    """The table has, for a rate, the early losses of a training of 500 updates and of one of 3,000.

    A tenth of the updates of a training is warm-up.
    """
    stopped = training("deepnorm", 6, 0.001, 7.0, stuck="at update 375")
    stopped["log"]["train_inner"] = []
    with_long_warm_up = training("deepnorm", 6, 0.001, 6.0, updates=3000)

    table = render.warm_up([stopped, with_long_warm_up])

    _header, _dashes, row = table.splitlines()
    assert row == "| 6L-6L | DeepNorm | 0.001 | stuck | 9.00 |"


def judged(records, verdict, failed):
    """Return the judgement on one training. records: name of the file that its record is in."""
    return {"records": records, "verdict": verdict, "failed": failed}


def test_warnings_of_failures_and_false_alarms_are_counted_by_file():
    """A warning is any verdict but stable. A row has a file of records, warnings of failures, and false alarms."""
    judgements = [
        judged("a", "stable", failed=False),
        judged("a", "at risk", failed=False),
        judged("a", "diverging", failed=True),
        judged("a", "stable", failed=True),
        judged("a", "at risk", failed=True),
        judged("b", "stable", failed=True),
    ]

    _header, _dashes, *rows = import_program(JUDGE).counts(judgements).splitlines()

    assert rows == ["| a | 2 of 3 | 1 of 2 |", "| b | 0 of 1 | 0 of 0 |", "| all | 2 of 4 | 1 of 2 |"]
