"""Tests of launching: a training is the same however its processes start, and ends in one line if one is lost."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from omegaconf import OmegaConf

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.distributed import launch

from ..conftest import TRAIN_FLAGS
from ..faults.life import children, lives
from ..support import ranks
from ..support.errors import refused
from ..support.forked import BIN
from ..support.helpers import ROOT, USER_DIR, run_cold
from ..support.lives import TINY, status_of_training
from ..support.logs import losses

MODEL = (*TINY, "--dropout", "0")
ENDLESS = ("--max-update", "100000", "--save-interval-updates", "5", "--keep-interval-updates", "1")
PROMPT = "import deepnet_fairseq as d; d.register(); from fairseq_cli.train import cli_main; cli_main()"
PYTHON_M = ("python", "-m", "fairseq_cli.train")  # multiprocessing copies this module into its children


def up_to_the_order_of_sums(expected: list[float]):
    """Expect losses of which the last of three logged decimals may differ by one: sums are rounded differently."""
    return pytest.approx(expected, abs=1.1e-3)


@pytest.fixture(scope="module")
def losses_of_one_process(data, tmp_path_factory):
    """Provide the losses of four updates of one process, which accumulates the batches of two processes for each."""
    folder = tmp_path_factory.mktemp("one")
    flags = (*TRAIN_FLAGS, *MODEL, "--max-update", 4, "--update-freq", 2, "--save-dir", folder)
    rows = ranks.train(1, folder / "log", data, *flags)
    return [float(row["loss"]) for row in rows]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(("fairseq-train",), id="fairseq-train"),
        pytest.param(("python", "-c", PROMPT), id="a prompt", marks=pytest.mark.smoke),
        pytest.param(PYTHON_M, id="python -m", marks=pytest.mark.smoke),
    ],
)
def test_two_processes_train_as_one(program, losses_of_one_process, data, tmp_path):
    """fairseq's own launcher would start only one process on a CPU."""
    flags = (*TRAIN_FLAGS, *MODEL, "--max-update", "4", "--save-dir", tmp_path, "--distributed-world-size", "2")

    done = run_cold(*program, data, *flags)

    losses_of_two = list(losses(done.stdout).values())
    assert losses_of_two == up_to_the_order_of_sums(losses_of_one_process)
    assert (tmp_path / "checkpoint_last.pt").exists()
    assert "already been imported" not in done.stdout  # fairseq logs it where --user-dir is imported twice


@pytest.mark.smoke
def test_hydra_trains_on_two_processes_that_are_given_their_ranks(data, tmp_path):
    """Each process is started as a program of its own, with its rank, and the two meet in a file."""
    settings = {
        "common.user_dir": USER_DIR,
        "common.cpu": True,
        "task.data": data,
        "checkpoint.save_dir": tmp_path,
        "optimization.max_update": 2,
        "distributed_training.distributed_world_size": 2,
        "distributed_training.distributed_backend": "gloo",
        "distributed_training.distributed_init_method": f"file://{tmp_path}/meeting",
        "distributed_training.distributed_no_spawn": True,
    }
    program = [str(BIN / "fairseq-hydra-train"), "--config-dir", f"{ROOT}/configs", "--config-name", "quickstart"]
    overrides = [f"{name}={value}" for name, value in settings.items()]

    def command_of(rank):
        own = [f"distributed_training.distributed_rank={rank}", f"hydra.run.dir={tmp_path}/hydra{rank}"]
        return [*program, *overrides, *own]

    second = subprocess.Popen(command_of(1), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        first = run_cold(*command_of(0))
        assert second.wait(60) == 0
    finally:
        second.kill()

    logs_of_hydra = [path.read_text() for path in (tmp_path / "hydra0").glob("*.log")]
    log = "".join([first.stdout, *logs_of_hydra])
    assert "training on 2 devices" in log  # fairseq's words
    assert "deepnet_fairseq.plugin.run" in log  # the logger of the package's trainer: fairseq's own has not trained
    assert (tmp_path / "checkpoint_last.pt").exists()


class Launched(NamedTuple):
    """A running training: the program that was started, and the pids of its worker processes, which train."""

    program: subprocess.Popen
    workers: list[int]


@pytest.fixture
def start_two_processes(data, tmp_path):
    """Provide a function that starts an endless training of two processes, and returns when it has saved twice.

    launcher: what starts the processes, "fairseq-train", "python -m" or "torchrun". Checkpoints and log, whose name is
    log, are in tmp_path. The program is killed when the test ends.
    """
    started = []

    def start(launcher: str = "fairseq-train") -> Launched:
        start_of_training = (BIN / PYTHON_M[0], *PYTHON_M[1:]) if launcher == "python -m" else (BIN / "fairseq-train",)
        words = [*start_of_training, data, *TRAIN_FLAGS, *MODEL, *ENDLESS, "--save-dir", tmp_path]
        if launcher == "torchrun":
            words = [BIN / "torchrun", "--standalone", "--nproc_per_node", "2", "--no-python", *words]
        else:
            words += ["--distributed-world-size", "2"]

        log = tmp_path / "log"
        words = [str(word) for word in words]
        with open(log, "w") as output:
            program = subprocess.Popen(words, stdout=output, stderr=output, start_new_session=True)
        started.append(program)
        deadline = time.monotonic() + 120
        while not (tmp_path / "checkpoint_previous.pt").exists():
            assert program.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)

        workers = []
        for pid in children(program.pid):
            command_line = Path(f"/proc/{pid}/cmdline").read_text()
            if "resource_tracker" not in command_line:  # the tracker is a process of Python's multiprocessing
                workers.append(pid)
        return Launched(program, workers)

    yield start
    for program in started:
        program.kill()
        program.wait()


@pytest.mark.smoke
@pytest.mark.parametrize("launcher", ["fairseq-train", "python -m"])
def test_a_signal_to_the_program_makes_its_processes_save_and_end(launcher, start_two_processes, tmp_path):
    program, _workers = start_two_processes(launcher)

    program.send_signal(signal.SIGTERM)

    assert program.wait(60) == 128 + signal.SIGTERM
    assert re.search(rf"SIGTERM .*{tmp_path}/checkpoint_last\.pt", (tmp_path / "log").read_text())


@pytest.mark.smoke
def test_a_lost_process_ends_the_other_in_a_line(start_two_processes, tmp_path):
    """The line names the process that has noticed the loss, and the folder from which a resume starts."""
    program, workers = start_two_processes()

    os.kill(workers[-1], signal.SIGKILL)

    assert program.wait(60) != 0
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert re.search(rf"error: process \d of 2: .* {tmp_path}", log), log[-2000:]


def end_within(seconds: float, pids: list[int]) -> bool:
    """Wait until all processes have ended, for so many seconds at most; return whether they have."""
    deadline = time.monotonic() + seconds
    while any(lives(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(lives(pid) for pid in pids)


@pytest.mark.smoke
@pytest.mark.parametrize("launcher", ["torchrun", "fairseq-train"])
def test_workers_end_with_a_killed_launcher_and_free_the_folder(launcher, start_two_processes, data, tmp_path):
    """A training of one process can then resume in the folder; it ends at once, since more than 6 updates are done."""
    program, workers = start_two_processes(launcher)
    assert len(workers) == 2

    program.kill()  # SIGKILL to the launcher alone
    program.wait()

    assert end_within(60, workers)
    resume = ("--max-update", "6", "--reset-dataloader", "--save-dir", tmp_path)
    assert status_of_training(tmp_path / "again", data, *TRAIN_FLAGS, *MODEL, *resume) == 0


SAVING = (*TRAIN_FLAGS, *MODEL, "--save-interval-updates", "3")


@pytest.fixture(scope="module")
def saved_by_two_processes(data, tmp_path_factory):
    """Provide the folder of a training of two processes that has saved after updates 3 and 4."""
    folder = tmp_path_factory.mktemp("two")
    ranks.train(2, folder / "log", data, *SAVING, "--save-dir", folder, "--max-update", "4")
    return folder


def test_all_processes_resume_from_the_checkpoint_before_a_damaged_one(
    saved_by_two_processes, losses_of_one_process, data, tmp_path
):
    """The processes resume from the checkpoint of update 3, and make update 4 again."""
    folder = shutil.copytree(saved_by_two_processes, tmp_path / "run")
    os.truncate(folder / "checkpoint_last.pt", 3000)  # bytes, of about 150,000

    rows = ranks.train(2, tmp_path / "log", data, *SAVING, "--save-dir", folder, "--max-update", "4")

    assert [row["num_updates"] for row in rows] == ["4"]
    assert [float(row["loss"]) for row in rows] == up_to_the_order_of_sums(losses_of_one_process[-1:])
    log = (tmp_path / "log").read_text()
    assert re.search(rf"checkpoint_last\.pt: .* {folder}/checkpoint", log)  # the damaged one, and the one before


def test_if_all_checkpoints_are_damaged_no_file_changes(saved_by_two_processes, data, tmp_path):
    folder = shutil.copytree(saved_by_two_processes, tmp_path / "run")
    checkpoints = list(folder.glob("*.pt"))
    assert len(checkpoints) >= 2
    for path in checkpoints:
        os.truncate(path, 1000)

    rows = ranks.train(2, tmp_path / "log", data, *SAVING, "--save-dir", folder, "--max-update", "5", check=False)

    assert rows == []
    assert f"error: {folder}/checkpoint_last.pt: " in (tmp_path / "log").read_text()
    sizes = {path: path.stat().st_size for path in folder.glob("*.pt")}
    assert sizes == dict.fromkeys(checkpoints, 1000)


def test_a_process_that_never_comes_ends_the_other_in_a_line(data, tmp_path):
    """The process that has come, rank 0 of 2, waits for the seconds of --heartbeat-timeout."""
    flags = (
        *TRAIN_FLAGS, *MODEL, "--save-dir", tmp_path, "--heartbeat-timeout", "3", "--distributed-world-size", "2",
        "--distributed-init-method", f"file://{tmp_path}/meeting", "--distributed-no-spawn", "--distributed-rank", "0",
        "--distributed-backend", "gloo",
    )  # fmt: skip

    ranks.train(1, tmp_path / "log", data, *flags, check=False, timeout=60)

    log = (tmp_path / "log").read_text()
    assert "error: process 0 of 2: " in log, log[-2000:]
    assert "Traceback" not in log


def abort_in_place_of_leaving_the_group(main) -> None:
    """Let this process be aborted where it leaves the process group, as gloo's threads may do."""
    launch._leave_group_if_safe = os.abort


def refuse_a_flag(cfg) -> None:
    """Stand in for fairseq-train: find a mistake of the user once all processes are there."""
    raise UserError("--some-flag", "does not fit")


@pytest.mark.smoke
def test_the_mistake_that_a_process_names_is_told_even_if_it_is_aborted_at_its_end():
    cfg = OmegaConf.create(
        {
            "common": {"cpu": True, "tpu": False, "model_parallel_size": 1},
            "checkpoint": {"save_dir": "runs/mine"},
            "distributed_training": {
                "distributed_init_method": None, "distributed_world_size": 2, "distributed_rank": 0,
                "distributed_backend": "gloo", "distributed_port": 0, "distributed_no_spawn": False,
                "heartbeat_timeout": 0, "device_id": 0,
            },
        }
    )  # fmt: skip

    with refused("--some-flag"):
        launch.call_main(None, cfg, refuse_a_flag, abort_in_place_of_leaving_the_group)


def fail_to_load_on_rank_0_of_2(reason: str) -> None:
    """Raise what fairseq raises when a checkpoint does not load, where fairseq-train explains lost processes.

    reason: message of the RuntimeError that is the cause
    """
    place = {"distributed_rank": 0, "distributed_world_size": 2}
    cfg = OmegaConf.create({"distributed_training": place, "checkpoint": {"save_dir": "runs/mine"}})
    with launch._lost_process_as_user_error(cfg):
        raise Exception("Cannot load model parameters from checkpoint x.pt") from RuntimeError(reason)


def test_a_process_lost_while_others_load_a_checkpoint_is_named():
    reason = "[gloo/pair.cc:553] Connection closed by peer"

    with refused("process 0 of 2") as caught:
        fail_to_load_on_rank_0_of_2(reason)

    assert reason in caught.value.way_out


def test_an_error_of_loading_alone_stays_as_it_is():
    with pytest.raises(Exception, match="x.pt") as caught:
        fail_to_load_on_rank_0_of_2("Error(s) in loading state_dict for DeepTransformer")

    assert type(caught.value) is Exception


# Tasks that srun has started


@pytest.mark.parametrize(
    ("variables", "started_by_srun"),
    [
        ({}, False),
        ({"SLURM_STEP_NODELIST": "n1", "SLURM_NTASKS": "2"}, True),
        ({"SLURM_STEP_NODELIST": "n1", "SLURM_NTASKS": "1"}, False),  # one task launches its processes itself
        ({"SLURM_STEP_NODELIST": "n1"}, False),
        ({"SLURM_NTASKS": "2"}, False),  # within a job, but not by srun
    ],
    ids=str,
)
def test_several_tasks_of_srun_are_ranks_already(variables, started_by_srun, monkeypatch):
    for name in ("SLURM_STEP_NODELIST", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert launch._started_by_srun() == started_by_srun
