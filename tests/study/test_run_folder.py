"""Tests of a training's folder: its marks, its lock, and how each end of fairseq-train is told."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deepnet_fairseq.study.run_folder import RunFolder, Stopped

from ..support.errors import refused
from ..support.experiments import until
from ..support.helpers import ROOT

FACTS = {"method": "deepnorm", "encoder_layers": 6, "decoder_layers": 6, "seed": 1}
DIVERGED = "fairseq-train: error: diverged at update 90: loss not finite, first at encoder.1.ffn (forward)"
STUCK = "fairseq-train: error: stuck at update 90: since update 40 hardly better than guessing; try --method deepnorm"
OF_TORCHRUN = 1  # its exit status for any failure of fairseq-train


@pytest.fixture
def begun_run(tmp_path):
    """Provide the folder of a training that has begun, without a log."""
    run = RunFolder(tmp_path / "run")
    run.begin(facts=FACTS, command="fairseq-train data --seed 1", environment={"gpus": 0})
    return run


# The end of an attempt.


@pytest.mark.parametrize(
    ("last_line", "mark", "status"),
    [
        (DIVERGED, "diverged", 3),
        (DIVERGED, "diverged", OF_TORCHRUN),
        (STUCK, "stuck", 4),
        (STUCK, "stuck", OF_TORCHRUN),
    ],
)
def test_a_training_that_diverged_or_was_stuck_is_over(last_line, mark, status, begun_run):
    """The log tells which it was."""
    begun_run.log.write_text(f"| train_inner | {{}}\n{last_line}\n")

    begun_run.end(status, "training")

    assert begun_run.is_over
    assert begun_run.failed.startswith(f"{mark} at update 90")
    assert (begun_run / mark).read_text().strip() == begun_run.failed


def test_a_failure_is_told_with_the_last_line_and_the_log(begun_run):
    begun_run.log.write_text("RuntimeError: out of memory\n")

    with refused("training a model") as caught:
        begun_run.end(1, "training a model")

    assert "RuntimeError: out of memory" in caught.value.way_out
    assert caught.value.way_out.endswith(str(begun_run.log))
    assert not begun_run.is_over


def test_what_an_earlier_attempt_printed_does_not_count(begun_run):
    begun_run.log.write_text(f"{DIVERGED}\n")
    begun_at = begun_run.size_of_log()
    with open(begun_run.log, "a") as log:
        log.write("killed\n")

    with refused("training") as caught:
        begun_run.end(1, "training", begun_at)

    assert caught.value.way_out.startswith("killed")
    assert not begun_run.is_over


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGUSR1", 138)])
def test_a_training_that_a_signal_stopped_ends_with_the_signals_status(name, status, begun_run):
    """It is not over, and so goes on later. Its status counts also where torchrun's is 1."""
    begun_run.log.write_text(
        f"2026-01-01 | INFO | run | stopped by {name} after update 7: x.pt is saved, the same command ..\n"
    )

    with pytest.raises(Stopped) as stopped:
        begun_run.end(OF_TORCHRUN, "training")

    assert stopped.value.code == status
    assert not begun_run.is_over


def test_a_signal_without_a_save_is_a_failure(begun_run):
    begun_run.log.write_text(
        "error: stopped by SIGTERM after update 7, and the last save failed: x.pt could not be saved\n"
    )

    with refused("training") as caught:
        begun_run.end(1, "training")

    assert "x.pt" in caught.value.way_out
    assert not begun_run.is_over


# The beginning of an attempt.


@pytest.fixture
def run_begun_again(begun_run):
    """Provide a run with a log, a checkpoint and the mark of a failure.

    It began again with other facts, another command, and 8 GPUs where it had none.
    """
    begun_run.log.write_text("first\n")
    begun_run.last_checkpoint.touch()
    (begun_run / "stuck").write_text("stuck at update 3\n")
    begun_run.begin(facts=FACTS | {"seed": 2}, command="other", environment={"gpus": 8})
    return begun_run


def test_facts_and_command_are_those_of_the_last_attempt(run_begun_again):
    assert run_begun_again.facts["seed"] == 2
    assert run_begun_again.command == "other"


def test_the_environment_is_that_of_the_first_attempt(run_begun_again):
    assert '"gpus": 0' in (run_begun_again / "environment.json").read_text()


def test_a_new_attempt_removes_the_mark_of_a_failure(run_begun_again):
    assert run_begun_again.failed is None


def test_a_new_attempt_from_a_checkpoint_keeps_the_log(run_begun_again):
    assert run_begun_again.log.read_text() == "first\n"


def test_a_new_attempt_without_a_checkpoint_removes_the_log(run_begun_again):
    run_begun_again.last_checkpoint.unlink()

    run_begun_again.begin(facts=FACTS, command="other", environment={})

    assert not run_begun_again.log.exists()


def test_a_missing_folder_holds_nothing(tmp_path):
    run = RunFolder(tmp_path / "none")

    assert run.facts is None
    assert run.command is None
    assert run.failed is None
    assert run.is_over is False
    assert run.size_of_log() == 0


# The lock.

LOCKS = """import sys, time
from pathlib import Path
from deepnet_fairseq.study.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked() as is_ours:
    Path(sys.argv[2]).write_text(str(is_ours))
    time.sleep(60)"""


@pytest.fixture
def locking_process(begun_run, tmp_path):
    """Provide a process that has locked the folder."""
    told = tmp_path / "told"
    process = subprocess.Popen([sys.executable, "-c", LOCKS, str(begun_run.path), str(told)], cwd=ROOT)
    until(lambda: told.exists() and told.read_text() == "True")
    yield process
    process.kill()
    process.wait()


def test_a_second_process_does_not_get_the_lock(begun_run, locking_process):
    with begun_run.locked() as is_ours:
        assert not is_ours


def test_a_process_that_is_killed_frees_the_lock(begun_run, locking_process):
    locking_process.kill()
    locking_process.wait()

    with begun_run.locked() as is_ours:
        assert is_ours


def status_of_flock(run):
    """Return the exit status of flock(1), with which scripts of earlier versions take the lock: 1 if it is taken."""
    return subprocess.run(["flock", "--nonblock", run.path / "lock", "true"]).returncode


def test_scripts_of_earlier_versions_do_not_get_the_lock_meanwhile(begun_run):
    with begun_run.locked() as is_ours:
        assert is_ours
        assert status_of_flock(begun_run) == 1


def test_scripts_of_earlier_versions_get_the_lock_afterwards(begun_run):
    with begun_run.locked():
        pass

    assert status_of_flock(begun_run) == 0
