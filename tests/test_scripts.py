"""The shell scripts, as a user runs them."""

import re
import subprocess

import pytest

from .helpers import ROOT

SCRIPTS = sorted((ROOT / "scripts").glob("*.sh"))
needs_venv = pytest.mark.skipif(
    not (ROOT / ".venv" / "complete").exists(), reason="scripts/setup.sh has not made .venv here"
)


def bash(*words, check=True):
    command = ["bash", *(str(word) for word in words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)
    assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_says_what_it_does_and_parses(script):
    assert re.match(r"#!/usr/bin/env bash\n# \w.{30}", script.read_text())
    bash("-n", script)


@needs_venv
def test_setup_done_is_silent():
    assert bash("scripts/setup.sh").stdout == ""


@needs_venv
def test_quickstart_from_nothing_and_again(tmp_path):
    """Some updates of a 2L-2L model: every step runs, a second call repeats none."""
    options = ("--depth", "2", "--updates", "25", "--out", tmp_path / "out put")
    first = bash("scripts/quickstart.sh", *options).stdout
    table = [row.split() for row in first.split("== result")[1].splitlines()]
    names = [row[0] for row in table if len(row) > 4 and row[1] == "25"]
    assert names == ["deepnorm", "post_ln"]
    assert (tmp_path / "out put" / "loss.png").stat().st_size > 5000
    again = bash("scripts/quickstart.sh", *options).stdout
    assert "== training" not in again
    assert "== translating" not in again
    assert again.split("== result")[1] == first.split("== result")[1]


@needs_venv
def test_prepare_text(data, tmp_path):
    text = data.parent / "text"
    splits = [text / split for split in ("train", "valid", "test")]
    bash("scripts/prepare_text.sh", "qaa", "qab", *splits, tmp_path / "bin", "--vocab", "150")
    assert (tmp_path / "bin" / "dict.qaa.txt").read_bytes() == (data / "dict.qaa.txt").read_bytes()
    refused = bash("scripts/prepare_text.sh", "qaa", "xyz", *splits, tmp_path / "bin2", check=False)
    assert refused.returncode != 0
    assert refused.stderr.startswith("deepnet: error: ")
    assert "train.xyz: no such file" in refused.stderr
    assert not (tmp_path / "bin2").exists()


def test_quickstart_refuses_unknown_options():
    done = bash("scripts/quickstart.sh", "--colour", "red", check=False)
    assert done.returncode == 2
    assert "unknown option --colour" in done.stderr
