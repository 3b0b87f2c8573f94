"""Tests of a training's folder: its marks, its lock, and how each end of fairseq-train is told."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.study.run_folder import RunFolder, Stopped

from ..support.experiments import until
from ..support.helpers import ROOT

FACTS = {"method": "deepnorm", "encoder_layers": 6, "decoder_layers": 6, "seed": 1}
DIVERGED = "fairseq-train: error: diverged at update 90: loss not finite, first at encoder.1.ffn (forward)"
STUCK = "fairseq-train: error: stuck at update 90: since update 40 hardly better than guessing; try --method deepnorm"


@pytest.fixture
def run(tmp_path):
    made = RunFolder(tmp_path / "run")
    made.begin(facts=FACTS, command="fairseq-train data --seed 1", environment={"gpus": 0})
    return made


@pytest.mark.parametrize("status", [1, None], ids=["of torchrun", "its own"])
@pytest.mark.parametrize(("said", "mark", "own"), [(DIVERGED, "diverged", 3), (STUCK, "stuck", 4)])
def test_divergence_and_being_stuck_are_ends(said, mark, own, status, run):
    """torchrun turns the statuses of both into 1; the log tells which it was."""
    run.log.write_text(f"| train_inner | {{}}\n{said}\n")
    run.end(own if status is None else status, "training")
    assert run.is_over
    assert run.failed.startswith(f"{mark} at update 90")
    assert (run / mark).read_text().strip() == run.failed


def test_an_end_that_is_none_names_the_log(run):
    run.log.write_text("RuntimeError: out of memory\n")
    with pytest.raises(UserError, match=r"out of memory; whole log: .*train\.log$"):
        run.end(1, "training a model")
    assert not run.is_over


def test_what_an_earlier_attempt_said_does_not_count(run):
    run.log.write_text(f"{DIVERGED}\n")
    begun_at = run.size_of_log()
    with open(run.log, "a") as log:
        log.write("killed\n")
    with pytest.raises(UserError, match="killed"):
        run.end(1, "training", begun_at)


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGUSR1", 138)])
def test_a_training_that_a_signal_stopped_goes_on_later(name, status, run):
    """It is not over; the status is the signal's, also where torchrun's is 1."""
    run.log.write_text(
        f"2026-01-01 | INFO | run | stopped by {name} after update 7: x.pt is saved, the same command ..\n"
    )
    with pytest.raises(Stopped) as stopped:
        run.end(1, "training")
    assert stopped.value.code == status
    assert not run.is_over


def test_a_signal_without_a_save_is_a_failure(run):
    run.log.write_text("error: stopped by SIGTERM after update 7, and the last save failed: x.pt could not be saved\n")
    with pytest.raises(UserError, match="could not be saved"):
        run.end(1, "training")


def test_a_training_that_begins_again(run):
    """Facts and command are written anew; the environment, and the log of a saved training, stay; old marks go."""
    run.log.write_text("first\n")
    run.last_checkpoint.touch()
    (run / "stuck").write_text("stuck at update 3\n")
    run.begin(facts=FACTS | {"seed": 2}, command="other", environment={"gpus": 8})
    assert (run.facts["seed"], run.command) == (2, "other")
    assert '"gpus": 0' in (run / "environment.json").read_text()
    assert run.failed is None and run.log.read_text() == "first\n"

    run.last_checkpoint.unlink()
    run.begin(facts=FACTS, command="other", environment={})
    assert not run.log.exists()


def test_an_empty_folder_has_nothing(tmp_path):
    run = RunFolder(tmp_path / "none")
    assert (run.facts, run.command, run.failed, run.is_over, run.size_of_log()) == (None, None, None, False, 0)


HOLDS = """import sys, time
from pathlib import Path
from deepnet_fairseq.study.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked() as held:
    Path(sys.argv[2]).write_text(str(held))
    time.sleep(60)"""


def test_one_process_works_on_a_folder(run, tmp_path):
    """The lock is the process's: a second one is told that it is held, until the first ends in any way."""
    told = tmp_path / "told"
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, str(run.path), str(told)], cwd=ROOT)
    until(lambda: told.exists() and told.read_text() == "True")
    with run.locked() as held:
        assert not held

    holder.kill()
    holder.wait()
    with run.locked() as held:
        assert held


def test_the_lock_of_the_scripts_is_the_same(run):
    """Scripts of earlier versions take the same lock by flock(1)."""
    with run.locked() as held:
        done = subprocess.run(["flock", "--nonblock", run.path / "lock", "true"])
        assert held and done.returncode == 1
    assert subprocess.run(["flock", "--nonblock", run.path / "lock", "true"]).returncode == 0
