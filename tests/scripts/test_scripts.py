"""Tests of the shell scripts, run as a user runs them."""

import os
import re
import subprocess

import pytest

from ..support.experiments import bash, needs_venv
from ..support.helpers import ROOT

SCRIPTS = sorted((ROOT / "scripts").glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_says_what_it_does_and_parses(script):
    assert re.match(r"#!/usr/bin/env bash\n# \w.{30}", script.read_text())
    bash("-n", script)


@needs_venv
def test_every_entry_point_can_be_started():
    """Every script is executable, because pages print scripts/NAME.sh without bash."""
    assert not [script.name for script in SCRIPTS if not os.access(script, os.X_OK)]


@needs_venv
def test_setup_done_is_silent():
    assert bash("scripts/setup.sh").stdout == ""


@pytest.fixture(scope="module")
def quickstart_out(tmp_path_factory):
    return tmp_path_factory.mktemp("quick start") / "out"  # the path has a blank


def result(stdout) -> dict[str, dict[str, str]]:
    """Return the final table, method -> column -> cell."""
    lines = stdout.split("== result")[1].splitlines()[1:]
    header, _rule, *rows = [re.split(r" {2,}", line) for line in lines[: lines.index("")]]
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


@pytest.mark.smoke
@needs_venv
def test_quickstart_from_nothing_and_again(quickstart_out):
    """The quickstart runs every step for a 2L-2L model, and a second call repeats none."""
    options = ("--depth", "2", "--updates", "25", "--out", quickstart_out, "--methods", "deepnorm,admin")
    first = bash("scripts/quickstart.sh", *options)
    assert {method for method, row in result(first.stdout).items() if "too short" in row["BLEU"]} == {
        "deepnorm",
        "admin",
    }
    assert (quickstart_out / "loss.png").stat().st_size > 5000 and "0 of 2 over; deepnorm 2L-2L" in first.stderr
    again = bash("scripts/quickstart.sh", *options)
    assert " over; " not in again.stderr
    assert again.stdout.split("== result")[1] == first.stdout.split("== result")[1]


@needs_venv
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_deepnorm_learns_where_post_ln_does_not(seed, tmp_path):
    """DeepNorm learns at 18L-18L where Post-LN does not, with the same data, seed, budget and hyper-parameters."""
    table = result(bash("scripts/quickstart.sh", "--seed", seed, "--out", tmp_path, timeout=3600).stdout)
    learnt, stuck = table["deepnorm"], table["post_ln"]
    assert float(learnt["held-out loss"]) < 4 and float(learnt["BLEU"]) > 20 and learnt["failed"] == "-"
    assert stuck["failed"] == "1e-3: stuck at update 400" and stuck["held-out loss"] == stuck["BLEU"] == "-"


@needs_venv
def test_prepare_text(data, tmp_path):
    text = data.parent / "text"
    splits = [text / split for split in ("train", "valid", "test")]
    bash("scripts/prepare_text.sh", "qaa", "qab", *splits, tmp_path / "bin", "--vocab", "150")
    assert (tmp_path / "bin" / "dict.qaa.txt").read_bytes() == (data / "dict.qaa.txt").read_bytes()
    refused = bash("scripts/prepare_text.sh", "qaa", "xyz", *splits, tmp_path / "bin2", check=False)
    assert refused.returncode and re.match("deepnet: error: .*train.xyz: no such file", refused.stderr)


EXPERIMENTS = [path for path in SCRIPTS if "lib/entry.sh" in path.read_text()]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_help_is_printed_once(path):
    """Also by a script that calls several experiments; it needs no environment."""
    done = subprocess.run(["bash", path, "--help"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0
    assert done.stdout.count(f"scripts/{path.name} [--dry-run") == 1
    assert done.stdout.count("docs/experiments.md#settings") == 1
