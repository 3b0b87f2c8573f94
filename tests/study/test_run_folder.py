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
# last lines of logs
DIVERGED = "fairseq-train: error: diverged at update 90: loss not finite, first at encoder.1.ffn (forward)"
STUCK = "fairseq-train: error: stuck at update 90: since update 40 hardly better than guessing; try --method deepnorm"
# exit statuses
OF_DIVERGED = 3  # of fairseq-train with this package
OF_STUCK = 4
OF_TORCHRUN = 1  # for any failure of the fairseq-train that it runs


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
        (DIVERGED, "diverged", OF_DIVERGED),
        (DIVERGED, "diverged", OF_TORCHRUN),
        (STUCK, "stuck", OF_STUCK),
        (STUCK, "stuck", OF_TORCHRUN),
    ],
)
def test_a_training_that_diverged_or_was_stuck_is_over(last_line, mark, status, begun_run):
    """The log tells which it was, and the run gets a file of that name, its mark."""
    begun_run.log.write_text(f"| train_inner | {{}}\n{last_line}\n")

    begun_run.end(status, what="training")

    assert begun_run.is_over
    assert begun_run.failed.startswith(mark)
    assert "update 90" in begun_run.failed
    assert (begun_run / mark).read_text().strip() == begun_run.failed


def test_any_other_failure_is_an_error_with_the_last_line_and_the_log(begun_run):
    begun_run.log.write_text("RuntimeError: out of memory\n")

    with refused("training a model") as caught:
        begun_run.end(1, what="training a model")

    assert "RuntimeError: out of memory" in caught.value.way_out
    assert str(begun_run.log) in caught.value.way_out
    assert not begun_run.is_over


def test_what_an_earlier_attempt_printed_does_not_count(begun_run):
    begun_run.log.write_text(f"{DIVERGED}\n")  # printed by the earlier attempt
    begun_at = begun_run.size_of_log()
    with open(begun_run.log, "a") as log:
        log.write("killed\n")

    with refused("training") as caught:
        begun_run.end(1, what="training", begun_at=begun_at)

    assert "killed" in caught.value.way_out
    assert not begun_run.is_over


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 128 + 15), ("SIGUSR1", 128 + 10), ("SIGINT", 128 + 2)])
def test_a_training_that_a_signal_stopped_ends_with_the_signals_status(name, status, begun_run):
    """The training is not over, and may go on later. The log names the signal, since torchrun's own status is 1."""
    begun_run.log.write_text(
        f"2026-01-01 | INFO | run | stopped by {name} after update 7: x.pt is saved, the same command ..\n"
    )

    with pytest.raises(Stopped) as stopped:
        begun_run.end(OF_TORCHRUN, what="training")

    assert stopped.value.code == status
    assert not begun_run.is_over


def test_a_signal_without_a_save_is_a_failure(begun_run):
    begun_run.log.write_text(
        "error: stopped by SIGTERM after update 7, and the last save failed: x.pt could not be saved\n"
    )

    with refused("training") as caught:
        begun_run.end(1, what="training")

    assert "x.pt" in caught.value.way_out
    assert not begun_run.is_over


# The beginning of an attempt.


@pytest.fixture
def run_begun_again(begun_run):
    """Provide a run whose first attempt left a log, a checkpoint and the mark of a failure, and that began again.

    The second attempt has other facts, another command, and 8 GPUs where the first had none.
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


def test_a_folder_that_does_not_exist_is_that_of_a_run_not_begun(tmp_path):
    run = RunFolder(tmp_path / "none")

    assert run.facts is None
    assert run.command is None
    assert run.failed is None
    assert run.is_over is False
    assert run.size_of_log() == 0


# The lock.

# Arguments: a run's folder, which it locks, and a file in which it writes whether it has the lock.
LOCKS_A_FOLDER = """import sys, time
from pathlib import Path
from deepnet_fairseq.study.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked() as is_ours:
    Path(sys.argv[2]).write_text(str(is_ours))
    time.sleep(60)"""


@pytest.fixture
def locking_process(begun_run, tmp_path):
    """Provide a process that has locked the folder."""
    answer = tmp_path / "has_lock"
    process = subprocess.Popen([sys.executable, "-c", LOCKS_A_FOLDER, str(begun_run.path), str(answer)], cwd=ROOT)
    until(lambda: answer.exists() and answer.read_text() == "True")
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


def test_scripts_of_earlier_versions_do_not_get_a_lock_that_is_taken(begun_run):
    with begun_run.locked() as is_ours:
        assert is_ours
        assert status_of_flock(begun_run) == 1


def test_scripts_of_earlier_versions_get_a_lock_that_was_released(begun_run):
    with begun_run.locked():
        pass

    assert status_of_flock(begun_run) == 0
