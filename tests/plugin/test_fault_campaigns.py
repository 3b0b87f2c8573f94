"""Tests of the fault campaigns: trainings survive kills and full disks, and a difference would be noticed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
import torch

from ..faults import life, states
from ..faults.campaign import KINDS, words_of
from ..support import ranks
from ..support.helpers import ROOT

STATE = {  # a checkpoint; one of its weights is NaN, which equals no number
    "model": {"w": torch.tensor([[1.0, 0.0], [float("nan"), 2.0]])},
    "optimizer_history": [{"num_updates": 6, "lr_scheduler_state": {"best": None}}],
    "last_optimizer_state": {"state": {0: {"step": 6, "exp_avg": torch.ones(3)}}},
    "extra_state": {"previous_training_time": 3.5, "metrics": {"train": [(90, "wps", "TimeMeter", {"init": 1.0})]}},
}


def test_a_checkpoint_does_not_differ_from_itself():
    assert list(states.differences(STATE, STATE)) == []


@pytest.mark.parametrize(
    "changed, place",
    [
        # -0.0 equals 0.0, but its bits are others
        ({"model": {"w": torch.tensor([[1.0, -0.0], [float("nan"), 2.0]])}}, ".model.w"),
        # a moment is missing, and the step is no int
        ({"last_optimizer_state": {"state": {0: {"step": 6.0}}}}, ".last_optimizer_state.state.0.exp_avg"),
        ({"extra_state": {"metrics": {"train": []}}}, ".extra_state.metrics.train"),
        # the entry of the last update lacks the schedule's state
        ({"optimizer_history": [{"num_updates": 7}]}, ".optimizer_history.lr_scheduler_state"),
    ],
)
def test_a_difference_of_two_checkpoints_is_found(changed, place):
    """place: address of the first difference that is reported."""
    differences = list(states.differences(STATE | changed, STATE))

    assert differences
    assert differences[0].startswith(f"{place}: ")


@pytest.fixture
def folder(tmp_path):
    """Provide a folder with checkpoint_last.pt of 6 updates."""
    torch.save(STATE, tmp_path / "checkpoint_last.pt")
    return tmp_path


def test_a_folder_with_the_saved_updates_has_lost_nothing(folder):
    assert states.check(folder, at_least=6) == 6


def test_fewer_updates_than_were_saved_are_noticed(folder):
    # the folder has 6 updates, and 9 were saved
    with pytest.raises(states.Lost, match=r"checkpoint_last.pt .*\b6\b.*\b9\b"):
        states.check(folder, at_least=9)


def test_a_truncated_checkpoint_is_noticed(folder):
    whole = (folder / "checkpoint_last.pt").read_bytes()
    (folder / "checkpoint_1_6.pt").write_bytes(whole[:-100])

    with pytest.raises(states.Lost, match="checkpoint_1_6.pt"):
        states.check(folder, at_least=6)


@pytest.mark.smoke
def test_trainings_killed_at_random_lose_no_checkpoint(tmp_path):
    """A short run of dev/faults.sh kills a training of each kind, and compares its end with an undisturbed one's."""
    kills = str(len(KINDS))
    command = [sys.executable, "-m", "tests.faults", kills, "--updates", "12", "--seed", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}

    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400)

    assert done.returncode == 0, done.stdout[-1000:] + done.stderr
    rows_of_kinds = re.findall(rf"^(?:{'|'.join(KINDS)}) ", done.stdout, re.MULTILINE)
    assert len(rows_of_kinds) == len(KINDS)
    assert list(tmp_path.glob("faults*")) == []  # the run removes its folder of trainings


def test_a_process_that_dies_at_its_start_ends_the_other_in_a_line(tmp_path, data, monkeypatch):
    """The other process does not wait for --heartbeat-timeout, here an hour."""
    monkeypatch.setattr(life, "FORK", ranks.CONTEXT)  # pytest would capture the output of forks of this process
    flags = (*KINDS["pair"].flags, "--heartbeat-timeout", "3600")
    pair = life.Life(words_of(data, 9, tmp_path / "run", flags), 2, tmp_path / "log")
    survivor = 0
    victim = 1
    try:
        assert pair.reaches("initialized host", times=2), pair.said()
        os.kill(pair.pids[victim], signal.SIGSTOP)
        assert pair.wait(2) == [None, None]  # the survivor waits for the victim

        pair.kill([pair.pids[victim]])
        pair.launcher.join(120)

        assert pair.statuses()[survivor] == 1
        assert pair.statuses()[victim] == -signal.SIGKILL
    finally:
        pair.end()
    assert f"error: process {survivor} of 2: " in pair.said()
    assert "Traceback" not in pair.said()
