"""Tests of the shell scripts, run as a user runs them."""

import os
import re
import subprocess

import pytest

from ..support.experiments import bash, needs_venv
from ..support.helpers import ROOT

SCRIPTS = sorted((ROOT / "scripts").glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_says_what_it_does(script):
    assert re.match(r"#!/usr/bin/env bash\n# \w.{30}", script.read_text())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_parses(script):
    bash("-n", script)


@needs_venv
def test_every_script_is_executable():
    """Pages print scripts/NAME.sh without bash."""
    assert SCRIPTS
    assert not [script.name for script in SCRIPTS if not os.access(script, os.X_OK)]


@needs_venv
def test_setup_done_is_silent():
    assert bash("scripts/setup.sh").stdout == ""


QUICKSTART = ("--depth", "2", "--updates", "25", "--methods", "deepnorm,admin")


@pytest.fixture(scope="module")
def quickstart_out(tmp_path_factory):
    return tmp_path_factory.mktemp("quick start") / "out"  # the path has a blank


@pytest.fixture(scope="module")
def first_quickstart(quickstart_out):
    """Provide the end of a quickstart of two 2L-2L models, from nothing."""
    return bash("scripts/quickstart.sh", *QUICKSTART, "--out", quickstart_out)


def final_table(stdout) -> dict[str, dict[str, str]]:
    """Return the final table, method -> column -> cell."""
    lines = stdout.split("== result")[1].splitlines()[1:]
    header, _rule, *rows = [re.split(r" {2,}", line) for line in lines[: lines.index("")]]
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


@pytest.mark.smoke
@needs_venv
def test_quickstart_from_nothing_runs_every_step(first_quickstart, quickstart_out):
    """It is too short for a BLEU, and says so of each method."""
    table = final_table(first_quickstart.stdout)

    too_short = {method for method, row in table.items() if "too short" in row["BLEU"]}
    assert too_short == {"deepnorm", "admin"}
    assert (quickstart_out / "loss.png").stat().st_size > 5000
    assert "0 of 2 over; deepnorm 2L-2L" in first_quickstart.stderr


@pytest.mark.smoke
@needs_venv
def test_a_second_quickstart_repeats_no_step(first_quickstart, quickstart_out):
    again = bash("scripts/quickstart.sh", *QUICKSTART, "--out", quickstart_out)

    assert " over; " not in again.stderr
    assert again.stdout.split("== result")[1] == first_quickstart.stdout.split("== result")[1]


@needs_venv
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_deepnorm_learns_where_post_ln_does_not(seed, tmp_path):
    """DeepNorm learns at 18L-18L where Post-LN does not, with the same data, seed, budget and hyper-parameters."""
    done = bash("scripts/quickstart.sh", "--seed", seed, "--out", tmp_path, timeout=3600)

    learnt = final_table(done.stdout)["deepnorm"]
    assert float(learnt["held-out loss"]) < 4
    assert float(learnt["BLEU"]) > 20
    assert learnt["failed"] == "-"
    stuck = final_table(done.stdout)["post_ln"]
    assert stuck["failed"] == "1e-3: stuck at update 400"
    assert stuck["held-out loss"] == "-"
    assert stuck["BLEU"] == "-"


def prefixes_of(data) -> list:
    """Return the prefixes of the text's splits."""
    return [data.parent / "text" / split for split in ("train", "valid", "test")]


@pytest.mark.smoke
@needs_venv
def test_prepare_text(data, tmp_path):
    """The script makes the vocabulary that the package makes of the same text."""
    bash("scripts/prepare_text.sh", "qaa", "qab", *prefixes_of(data), tmp_path / "bin", "--vocab", "150")

    assert (tmp_path / "bin" / "dict.qaa.txt").read_bytes() == (data / "dict.qaa.txt").read_bytes()


@pytest.mark.smoke
@needs_venv
def test_prepare_text_names_a_file_that_is_not_there(data, tmp_path):
    done = bash("scripts/prepare_text.sh", "qaa", "xyz", *prefixes_of(data), tmp_path / "bin", check=False)

    assert done.returncode != 0
    assert re.match(r"deepnet: error: .*train\.xyz: ", done.stderr)


EXPERIMENTS = [path for path in SCRIPTS if "lib/entry.sh" in path.read_text()]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_help_of_an_experiment_is_printed_once(path):
    """Also by a script that calls several experiments; it needs no environment."""
    done = subprocess.run(["bash", path, "--help"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})

    assert done.returncode == 0
    assert done.stdout.count(f"scripts/{path.name} [--dry-run") == 1
    assert done.stdout.count("docs/experiments.md#settings") == 1
