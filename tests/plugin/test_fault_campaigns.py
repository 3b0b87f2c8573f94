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

STATE = {
    "model": {"w": torch.tensor([[1.0, 0.0], [float("nan"), 2.0]])},
    "optimizer_history": [{"num_updates": 6, "lr_scheduler_state": {"best": None}}],
    "last_optimizer_state": {"state": {0: {"step": 6, "exp_avg": torch.ones(3)}}},
    "extra_state": {"previous_training_time": 3.5, "metrics": {"train": [(90, "wps", "TimeMeter", {"init": 1.0})]}},
}


@pytest.mark.parametrize(
    "other, where",
    [
        ({"model": {"w": torch.tensor([[1.0, -0.0], [float("nan"), 2.0]])}}, ".model.w"),
        ({"last_optimizer_state": {"state": {0: {"step": 6.0}}}}, ".last_optimizer_state.state.0.exp_avg: missing"),
        ({"extra_state": {"metrics": {"train": []}}}, ".extra_state.metrics.train: 0 instead of 1"),
        ({"optimizer_history": [{"num_updates": 7}]}, ".optimizer_history.lr_scheduler_state"),
    ],
)
def test_a_difference_of_two_checkpoints_is_found(other, where):
    differences = list(states.differences(STATE | other, STATE))
    assert differences and differences[0].startswith(where)


def test_a_lost_checkpoint_is_noticed(tmp_path):
    """A checkpoint with fewer updates than were saved, or a truncated one, raises Lost."""
    torch.save(STATE, tmp_path / "checkpoint_last.pt")
    with pytest.raises(states.Lost, match="holds 6 updates where 9"):
        states.check(tmp_path, at_least=9)
    (tmp_path / "checkpoint_1_6.pt").write_bytes((tmp_path / "checkpoint_last.pt").read_bytes()[:-100])
    with pytest.raises(states.Lost, match="checkpoint_1_6.pt cannot be read"):
        states.check(tmp_path, at_least=6)


@pytest.mark.smoke
def test_killed_at_random_ends_as_undisturbed(tmp_path):
    """A short run of dev/faults.sh loses no checkpoint."""
    command = [sys.executable, "-m", "tests.faults", "5", "--updates", "12", "--seed", "1"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr
    assert len(re.findall(rf"^(?:{'|'.join(KINDS)}) ", done.stdout, re.MULTILINE)) == 5
    assert "\nno checkpoint lost; " in done.stdout and not list(tmp_path.glob("faults*"))


def test_a_process_that_dies_at_its_start_is_noticed(tmp_path, data, monkeypatch):
    """A process that dies at its start ends the other with one line, without a wait of --heartbeat-timeout."""
    monkeypatch.setattr(life, "FORK", ranks.CONTEXT)  # pytest would capture the output of forks of this process
    pair = life.Life(words_of(data, 9, tmp_path / "run", KINDS["pair"][1]), 2, tmp_path / "log")
    try:
        assert pair.reaches("initialized host", 2), pair.said()
        os.kill(pair.pids[1], signal.SIGSTOP)
        assert pair.wait(2) == [None, None]  # the first waits for the second
        pair.kill([pair.pids[1]])
        pair.launcher.join(8)
        assert pair.statuses() == [1, -9]
    finally:
        pair.end()
    assert "process 0 of 2: another one is gone" in pair.said() and "Traceback" not in pair.said()
