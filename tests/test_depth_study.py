"""Tests of the depth study's page: its tables against numbers by hand and against the records beside it."""

import importlib.util
import math
import subprocess
import sys

import pytest

from .support.helpers import ROOT

SCRIPT = ROOT / "results" / "depth_study" / "render.py"


@pytest.fixture(scope="module")
def render():
    spec = importlib.util.spec_from_file_location("depth_study_render", SCRIPT)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def training(method, layers, rate, loss, seed=1, updates=500, **parts):
    """Return a record of a training with that held-out loss, and 9 bits on the training data."""
    run = {"method": method, "encoder_layers": layers, "decoder_layers": layers, "lr": rate, "seed": seed}
    rows = [{"num_updates": str(update), "loss": str(loss)} for update, loss in ((400, 5), (425, 8), (500, 10))]
    log = {"train_inner": rows, "valid": [{"valid_loss": "1.0"}, {"valid_loss": str(loss)}]}
    return {"name": "a", "run": run | {"updates": updates}, "log": log} | parts


def test_pages_are_those_of_the_records():
    subprocess.run([sys.executable, SCRIPT, "--check"], check=True)


def test_best_rate(render):
    """The best rate has the lowest loss of the first seed among rates with most seeds; failures give no loss."""
    records = [training("keel", 6, 0.004, 7.5), training("keel", 6, 0.0028, 7.4)]
    assert render.best(records) == (0.0028, [7.4])
    records += [training("keel", 6, 0.004, loss, seed) for seed, loss in ((2, 7.7), (3, 9.0))]
    assert render.best(records) == (0.004, [7.5, 7.7])
    assert render.best([training("keel", 6, 0.004, 9.0)])[1] == []
    (line,) = render.summary(records, ("keel",), [(6, 500), (18, 500)]).splitlines()[2:]
    assert line == "| Keel | 7.60 (≥ 0.004) | - |"


def test_failures_and_warm_up(render):
    """A training has failed if it ended early or is no better than guessing; the early loss is a mean."""
    diverged = training("pre_ln", 6, 0.001, 7.0, diverged="at update 7", check={"verdict": "at risk"})
    stuck = training("pre_ln", 6, 0.002, 8.95, check={"verdict": "stable"})
    trained = training("pre_ln", 6, 0.004, 7.0, check={"verdict": "stable"})
    assert [math.isinf(render.held_out(one)) for one in (diverged, stuck, trained)] == [True, True, False]
    assert render.early_loss(trained) == 9
    said = render.verdicts([diverged, stuck, trained])
    assert said == "It warned of 1 of 2 failures, and of 0 of 1 that trained.\n"
    ended = training("deepnorm", 6, 0.001, 7.0, stuck="at update 375")
    ended["log"]["train_inner"] = []
    page = render.warm_up([ended, training("deepnorm", 6, 0.001, 6.0, updates=3000)])
    assert page.splitlines()[2] == "| 6L-6L | DeepNorm | 0.001 | stuck | 9.00 |"


def test_picture(render, tmp_path):
    """The picture of the same records has the same bytes, and holds no date."""
    records = render.read("records.jsonl")
    for name in ("one.svg", "two.svg"):
        render.draw(records, tmp_path / name)
    written = (tmp_path / "one.svg").read_bytes()
    assert written == (tmp_path / "two.svg").read_bytes() and b"DeepNorm" in written and len(written) < 70_000
