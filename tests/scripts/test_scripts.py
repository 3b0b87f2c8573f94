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
    """The second line of a script is a comment of more than 30 characters."""
    assert re.match(r"#!/usr/bin/env bash\n# \w.{30}", script.read_text())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_parses(script):
    """bash -n reads a script without running it."""
    bash("-n", script)


@needs_venv
def test_every_script_is_executable():
    """Pages print scripts/NAME.sh without bash."""
    assert SCRIPTS
    assert not [script.name for script in SCRIPTS if not os.access(script, os.X_OK)]


@needs_venv
def test_a_set_up_that_is_complete_is_silent():
    assert bash("scripts/setup.sh").stdout == ""


QUICKSTART = ("--depth", "2", "--updates", "25", "--methods", "deepnorm,admin")


@pytest.fixture(scope="module")
def quickstart_out(tmp_path_factory):
    """Provide a folder for a quickstart, which does not exist yet, and whose path has a blank."""
    return tmp_path_factory.mktemp("quick start") / "out"


@pytest.fixture(scope="module")
def first_quickstart(quickstart_out):
    """Provide the finished process of a quickstart of two 2L-2L models, which began from nothing."""
    return bash("scripts/quickstart.sh", *QUICKSTART, "--out", quickstart_out)


def result_of(done: subprocess.CompletedProcess) -> str:
    """Return what a quickstart prints in the end, behind its line "== result"."""
    return done.stdout.split("== result")[1]


def final_table(done: subprocess.CompletedProcess) -> dict[str, dict[str, str]]:
    """Return the table that a quickstart prints in the end, method -> column -> cell.

    An empty line ends the table. Cells are two blanks or more apart.
    """
    _rest_of_line, *lines = result_of(done).splitlines()
    header, _rule, *rows = [re.split(r" {2,}", line) for line in lines[: lines.index("")]]
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


@pytest.mark.smoke
@needs_venv
def test_quickstart_from_nothing_runs_every_step(first_quickstart, quickstart_out):
    """The quickstart ends in a table and a picture. 25 updates are too short for a BLEU. Progress goes to stderr."""
    table = final_table(first_quickstart)

    too_short = {method for method, row in table.items() if "short" in row["BLEU"]}
    assert too_short == {"deepnorm", "admin"}
    assert (quickstart_out / "loss.png").stat().st_size > 5000
    assert "0 of 2 over; deepnorm 2L-2L" in first_quickstart.stderr


@pytest.mark.smoke
@needs_venv
def test_a_second_quickstart_repeats_no_step(first_quickstart, quickstart_out):
    """The second quickstart shows no progress of a training, and prints the same result."""
    again = bash("scripts/quickstart.sh", *QUICKSTART, "--out", quickstart_out)

    assert " over; " in first_quickstart.stderr
    assert " over; " not in again.stderr
    assert result_of(again) == result_of(first_quickstart)


@needs_venv
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_deepnorm_learns_where_post_ln_does_not(seed, tmp_path):
    """DeepNorm learns at 18L-18L where Post-LN does not, with the same data, seed, budget and hyper-parameters.

    The bounds of loss and BLEU lie between what a model reaches and what one does that has learnt nothing.
    """
    done = bash("scripts/quickstart.sh", "--seed", seed, "--out", tmp_path, timeout=3600)

    table = final_table(done)
    deepnorm = table["deepnorm"]
    assert float(deepnorm["held-out loss"]) < 4
    assert float(deepnorm["BLEU"]) > 20
    assert deepnorm["failed"] == "-"
    post_ln = table["post_ln"]
    assert post_ln["failed"].startswith("1e-3: stuck")  # at its only rate
    assert post_ln["held-out loss"] == "-"
    assert post_ln["BLEU"] == "-"


def prefixes_of(data) -> list:
    """Return the paths, without the language, of the text's files beside the binarised data."""
    return [data.parent / "text" / split for split in ("train", "valid", "test")]


@pytest.mark.smoke
@needs_venv
def test_prepare_text_makes_the_vocabulary_that_the_package_makes(data, tmp_path):
    """The package made `data` of the same text, also with 150 pieces."""
    bash("scripts/prepare_text.sh", "qaa", "qab", *prefixes_of(data), tmp_path / "bin", "--vocab", "150")

    assert (tmp_path / "bin" / "dict.qaa.txt").read_bytes() == (data / "dict.qaa.txt").read_bytes()


@pytest.mark.smoke
@needs_venv
def test_prepare_text_names_a_file_that_is_not_there(data, tmp_path):
    done = bash("scripts/prepare_text.sh", "qaa", "xyz", *prefixes_of(data), tmp_path / "bin", check=False)

    assert done.returncode != 0
    assert re.match(r"deepnet: error: .*train\.xyz: ", done.stderr)


EXPERIMENTS = [path for path in SCRIPTS if "lib/entry.sh" in path.read_text()]  # they call `deepnet reproduce`


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_help_of_an_experiment_is_printed_once(path):
    """A script that calls several experiments prints it once, too.

    The help works without .venv, whose programs are not on this PATH.
    """
    done = subprocess.run(["bash", path, "--help"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})

    assert done.returncode == 0
    assert done.stdout.count(f"scripts/{path.name} [--dry-run") == 1
    assert done.stdout.count("docs/experiments.md#settings") == 1
