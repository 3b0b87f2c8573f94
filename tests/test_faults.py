"""Trainings that are killed and starved of disk end as ones left alone; and the fault test would notice if not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
import torch

from .faults import life, states
from .faults.campaign import KINDS
from .support import ranks
from .support.helpers import ROOT

HISTORY = [{"num_updates": 6, "lr_scheduler_state": {"best": None}}]
STATE = {
    "model": {"w": torch.tensor([[1.0, 0.0], [float("nan"), 2.0]])},
    "optimizer_history": HISTORY,
    "last_optimizer_state": {"state": {0: {"step": 6, "exp_avg": torch.ones(3)}}},
    "extra_state": {
        "previous_training_time": 3.5,
        "metrics": {"train": [(10, "loss", "AverageMeter", {"sum": 2.0}), (90, "wps", "TimeMeter", {"init": 1.0})]},
    },
    "args": None,
}


@pytest.mark.parametrize(
    "other, where",
    [
        ({"model": {"w": torch.tensor([[1.0, -0.0], [float("nan"), 2.0]])}}, ".model.w"),
        ({"model": STATE["model"] | {"v": torch.ones(1)}}, ".model.v"),
        ({"last_optimizer_state": {"state": {0: {"step": 6.0}}}}, ".last_optimizer_state.state.0.exp_avg: missing"),
        ({"extra_state": {"metrics": {"train": []}}}, ".extra_state.metrics.train: 0 instead of 2"),
        ({"optimizer_history": [{"num_updates": 7}]}, ".optimizer_history.lr_scheduler_state"),
    ],
)
def test_finds_what_is_not_the_same(other, where):
    found = list(states.differences(STATE | other, STATE))
    assert found and found[0].startswith(where)


def test_a_lost_checkpoint_is_noticed(tmp_path):
    """Truncated, and one that holds less than was saved before; any file counts that has a checkpoint's name."""
    torch.save(STATE, tmp_path / "checkpoint_last.pt")
    assert states.check(tmp_path, at_least=6) == 6
    with pytest.raises(states.Lost, match="holds 6 updates where 9"):
        states.check(tmp_path, at_least=9)
    whole = (tmp_path / "checkpoint_last.pt").read_bytes()
    (tmp_path / "checkpoint_1_6.pt").write_bytes(whole[:-100])
    with pytest.raises(states.Lost, match="checkpoint_1_6.pt cannot be read"):
        states.check(tmp_path, at_least=6)


def faults(folder, *words, code: str = "") -> subprocess.CompletedProcess:
    """The fault test in a folder, in a process where `code` ran before."""
    program = f"import sys; sys.argv = ['fairseq-train', *{words!r}]\n{code}\nfrom tests.faults.__main__ import main\n"
    command = ["-c", f"{program}sys.exit(main())"] if code else ["-m", "tests.faults", *words]
    env = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=400)


@pytest.mark.smoke
def test_killed_at_random_ends_as_undisturbed(tmp_path):
    """scripts/fault_test.sh in short."""
    done = faults(tmp_path, "5", "--updates", "12", "--seed", "1")
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr
    rows = re.findall(rf"^ *(?:{'|'.join(KINDS)}) +\d+ +(\d+)", done.stdout, re.MULTILINE)
    assert [*map(int, rows)] == [1] * 5 and "\nno checkpoint lost; " in done.stdout
    assert not list(tmp_path.glob("faults*"))


@pytest.mark.smoke
def test_another_dropout_after_a_resume_is_noticed(tmp_path):
    """Were the seed not set anew for every update, a resumed training would drop other activations."""
    code = "from fairseq.trainer import Trainer; Trainer._set_seed = lambda self: None"
    words = ("3", "--kinds", "alone", "--updates", "18", "--full-disks", "0", "--seed", "1")
    done = faults(tmp_path, *words, code=code)
    assert done.returncode == 1
    assert re.search(r"fault_test: error: .*logged .*, undisturbed .*SEED=1 repeats it", done.stderr.splitlines()[-1])


def test_a_process_that_dies_at_its_start_is_noticed(tmp_path, data, monkeypatch):
    """Two that have met meet no second time, where one would wait for the other's address for --heartbeat-timeout."""
    monkeypatch.setattr(life, "FORK", ranks.CONTEXT)  # what is forked off pytest prints where pytest reads it
    flags = (str(data), *life.FLAGS, "--max-update", "9", "--save-dir", str(tmp_path / "run"), *KINDS["pair"][1])
    log = life.Log(tmp_path / "log")
    pair = life.Life(list(flags), 2, log)
    try:
        assert pair.reaches("initialized host", 2), log.text
        os.kill(pair.pids()[1], signal.SIGSTOP)
        assert pair.wait(2) == [None, None]  # the first has come to where it needs the second
        pair.kill((1,))
        assert pair.wait(8) == [1, -9]
    finally:
        pair.bury()
    assert "process 0 of 2: another one is gone" in log.text and "Traceback" not in log.text
