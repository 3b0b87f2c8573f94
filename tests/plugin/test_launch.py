"""Tests of launching: a training is the same however its processes start, and ends in one line if one is lost."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from deepnet_fairseq.plugin.distributed import launch

from ..conftest import TRAIN_FLAGS
from ..faults.life import children, lives
from ..support import ranks
from ..support.forked import BIN
from ..support.helpers import USER_DIR, run_cold
from ..support.lives import TINY, live
from ..support.logs import losses

MODEL = (*TINY, "--dropout", "0")
LONG = ("--max-update", "100000", "--save-interval-updates", "5", "--keep-interval-updates", "1")


def logged(losses: list[float]):
    """Expect losses up to the order of sums: the last of three logged decimals may differ by one."""
    return pytest.approx(losses, abs=1.1e-3)


@pytest.fixture(scope="module")
def expected(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    words = (*TRAIN_FLAGS, *MODEL, "--max-update", 4, "--update-freq", 2, "--save-dir", folder)
    return [float(row["loss"]) for row in ranks.train(1, folder / "log", data, *words)]


PROMPT = "import deepnet_fairseq as d; d.register(); from fairseq_cli.train import cli_main; cli_main()"


MODULE = ("python", "-m", "fairseq_cli.train")  # multiprocessing copies this module into its children


@pytest.mark.parametrize(
    "program", [("fairseq-train",), ("python", "-c", PROMPT), MODULE], ids=["fairseq-train", "a prompt", "python -m"]
)
def test_two_processes(program, expected, data, tmp_path):
    """Two processes train on a CPU, where fairseq's launcher starts none; --user-dir is imported once."""
    words = (*TRAIN_FLAGS, *MODEL, "--max-update", "4", "--save-dir", tmp_path, "--distributed-world-size", "2")
    done = run_cold(*program, data, *words)
    assert list(losses(done.stdout).values()) == logged(expected)
    assert (tmp_path / "checkpoint_last.pt").exists() and "already been imported" not in done.stdout


@pytest.mark.smoke
def test_two_processes_of_hydra(data, tmp_path):
    """fairseq-hydra-train trains on two processes of a CPU when each is started with its rank."""
    place = {"world_size": 2, "backend": "gloo", "init_method": f"file://{tmp_path}/meeting", "no_spawn": True}
    settings = {
        "common.user_dir": USER_DIR, "common.cpu": True, "task.data": data, "checkpoint.save_dir": tmp_path,
        "optimization.max_update": 2,
    } | {f"distributed_training.distributed_{name}": value for name, value in place.items()}  # fmt: skip
    words = [BIN / "fairseq-hydra-train", "--config-dir", f"{USER_DIR}/../configs", "--config-name", "quickstart",
             *(f"{name}={value}" for name, value in settings.items())]  # fmt: skip
    commands = [
        [*map(str, words), f"distributed_training.distributed_rank={rank}", f"hydra.run.dir={tmp_path}/hydra{rank}"]
        for rank in (0, 1)
    ]
    second = subprocess.Popen(commands[1], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        first = run_cold(*commands[0])
        assert second.wait(60) == 0
    finally:
        second.kill()
    logged = first.stdout + "".join(path.read_text() for path in (tmp_path / "hydra0").glob("*.log"))
    assert "training on 2 devices" in logged and "deepnet_fairseq.plugin.run" in logged
    assert (tmp_path / "checkpoint_last.pt").exists()


@pytest.fixture
def begin(data, tmp_path):
    """Start two processes of fairseq-train; return them after their first checkpoints, with their numbers.

    All processes are killed when the test ends.
    """
    started = []

    def begin(launcher: str = "fairseq-train"):
        program = [BIN / MODULE[0], *MODULE[1:]] if launcher == "python -m" else [BIN / "fairseq-train"]
        words = [*program, data, *TRAIN_FLAGS, *MODEL, *LONG, "--save-dir", tmp_path]
        if launcher == "torchrun":
            words = [BIN / "torchrun", "--standalone", "--nproc_per_node", "2", "--no-python", *words]
        else:
            words += ["--distributed-world-size", "2"]
        with open(tmp_path / "log", "w") as log:
            process = subprocess.Popen(list(map(str, words)), stdout=log, stderr=log, start_new_session=True)
        started.append(process)
        deadline = time.monotonic() + 120
        while not (tmp_path / "checkpoint_previous.pt").exists():
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()[-2000:]
            time.sleep(0.1)
        told = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in children(process.pid)}
        return process, [pid for pid, line in told.items() if "resource_tracker" not in line]

    yield begin
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.smoke
@pytest.mark.parametrize("launcher", ["fairseq-train", "python -m"])
def test_a_signal_to_the_program_is_for_its_processes(launcher, begin, tmp_path):
    process, _ = begin(launcher)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert "is saved" in (tmp_path / "log").read_text()


@pytest.mark.smoke
def test_a_lost_process_ends_the_other_in_a_line(begin, tmp_path):
    process, workers = begin()
    os.kill(workers[-1], signal.SIGKILL)
    assert process.wait(60) not in (0, None)
    text = (tmp_path / "log").read_text()
    assert "Traceback" not in text and f"it resumes from {tmp_path}" in text


@pytest.mark.smoke
@pytest.mark.parametrize("launcher", ["torchrun", "fairseq-train"])
def test_workers_end_with_a_killed_launcher(launcher, begin, data, tmp_path):
    """Worker processes end seconds after SIGKILL to their launcher's group, and the same command resumes at once."""
    process, workers = begin(launcher)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert len(workers) == 2 and gone(workers, 5)
    more = ("--max-update", "6", "--reset-dataloader", "--save-dir", tmp_path)
    assert live(tmp_path / "again", data, *TRAIN_FLAGS, *MODEL, *more) == 0


def gone(pids: list[int], seconds: float) -> bool:
    """Return whether all processes end within that many seconds."""
    deadline = time.monotonic() + seconds
    while any(map(lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(lives, pids))


def test_all_take_the_checkpoint_before(expected, data, tmp_path):
    """Every process resumes from the checkpoint before a damaged one; if all are damaged, no file changes."""
    words = (*TRAIN_FLAGS, *MODEL, "--save-interval-updates", "3", "--save-dir", tmp_path)
    ranks.train(2, tmp_path / "log", data, *words, "--max-update", "4")
    os.truncate(tmp_path / "checkpoint_last.pt", 3000)
    rows = ranks.train(2, tmp_path / "again", data, *words, "--max-update", "4")
    assert [row["num_updates"] for row in rows] == ["4"] and [float(rows[0]["loss"])] == logged(expected[-1:])
    log = (tmp_path / "again").read_text()
    assert re.search(rf"checkpoint_last\.pt: truncated or damaged .*; resuming from {tmp_path}/checkpoint", log)
    for path in tmp_path.glob("*.pt"):
        os.truncate(path, 1000)
    ranks.train(2, tmp_path / "none", data, *words, "--max-update", "5", check=False)
    assert "holds no other checkpoint that is whole; nothing was changed" in (tmp_path / "none").read_text()
    assert {path.stat().st_size for path in tmp_path.glob("*.pt")} == {1000}


def test_a_process_that_never_comes(data, tmp_path):
    """A process that never comes ends the other one after --heartbeat-timeout, in one line."""
    words = (*TRAIN_FLAGS, *MODEL, "--save-dir", tmp_path, "--heartbeat-timeout", "3", "--distributed-world-size", "2",
             "--distributed-init-method", f"file://{tmp_path}/meeting", "--distributed-no-spawn",
             "--distributed-rank", "0", "--distributed-backend", "gloo")  # fmt: skip
    ranks.train(1, tmp_path / "log", data, *words, check=False, timeout=60)
    text = (tmp_path / "log").read_text()
    assert "error: process 0 of 2: another one is gone or cannot be reached" in text, text[-2000:]
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("[gloo/pair.cc:553] Connection closed by peer", "process 0 of 2: another one is gone .*closed by peer"),
        ("Error(s) in loading state_dict for DeepTransformer", "Cannot load model parameters"),
    ],
)
def test_a_process_lost_while_others_load_is_one_line(reason, said):
    """A process lost while others load a checkpoint is named in one line; true loading errors stay as they are."""
    place = {"distributed_rank": 0, "distributed_world_size": 2}
    cfg = OmegaConf.create({"distributed_training": place, "checkpoint": {"save_dir": "runs/mine"}})
    with pytest.raises(Exception, match=said), launch._explain_in_a_line(cfg):
        raise Exception("Cannot load model parameters from checkpoint x.pt") from RuntimeError(reason)
