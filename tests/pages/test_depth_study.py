"""Tests of the pages of the depth study and of the check: tables against numbers by hand and against records."""

import importlib.util
import math
import subprocess
import sys

import pytest

from ..support.helpers import ROOT

JUDGE = ROOT / "results" / "check" / "judge.py"
SCRIPT = ROOT / "results" / "depth_study" / "render.py"


def load(script):
    spec = importlib.util.spec_from_file_location(script.parent.name, script)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def render():
    return load(SCRIPT)


def training(method, layers, rate, loss, seed=1, updates=500, **parts):
    """Return a record of a training with that held-out loss, and 9 bits on the training data."""
    run = {"method": method, "encoder_layers": layers, "decoder_layers": layers, "lr": rate, "seed": seed}
    rows = [{"num_updates": str(update), "loss": str(loss)} for update, loss in ((400, 5), (425, 8), (500, 10))]
    log = {"train_inner": rows, "valid": [{"valid_loss": "1.0"}, {"valid_loss": str(loss)}]}
    return {"name": "a", "run": run | {"updates": updates}, "log": log} | parts


def test_pages_are_those_of_the_records():
    subprocess.run([sys.executable, SCRIPT, "--check"], check=True)
    subprocess.run([sys.executable, JUDGE, "render", "--check"], check=True)


def test_failures_and_warm_up(render):
    """A training has failed if it ended early or is no better than guessing; the early loss is a mean."""
    diverged = training("pre_ln", 6, 0.001, 7.0, diverged="at update 7", check={"verdict": "at risk"})
    stuck = training("pre_ln", 6, 0.002, 8.95, check={"verdict": "stable"})
    trained = training("pre_ln", 6, 0.004, 7.0, check={"verdict": "stable"})
    assert [math.isinf(render.held_out(one)) for one in (diverged, stuck, trained)] == [True, True, False]
    assert render.early_loss(trained) == 9
    text = render.verdicts([diverged, stuck, trained])
    assert text == "It warned of 1 of 2 failures, and of 0 of 1 that trained."
    ended = training("deepnorm", 6, 0.001, 7.0, stuck="at update 375")
    ended["log"]["train_inner"] = []
    page = render.warm_up([ended, training("deepnorm", 6, 0.001, 6.0, updates=3000)])
    assert page.splitlines()[2] == "| 6L-6L | DeepNorm | 0.001 | stuck | 9.00 |"


def test_counts_of_the_check():
    """A warning is any verdict but stable; failures and trainings that learnt are counted apart, and in all."""
    outcomes = [("stable", False), ("at risk", False), ("diverging", True), ("stable", True), ("at risk", True)]
    records = [{"records": "a", "verdict": verdict, "failed": failed} for verdict, failed in outcomes]
    rows = load(JUDGE).counts([*records, {"records": "b", "verdict": "stable", "failed": True}]).splitlines()[2:]
    assert rows == ["| a | 2 of 3 | 1 of 2 |", "| b | 0 of 1 | 0 of 0 |", "| all | 2 of 4 | 1 of 2 |"]
