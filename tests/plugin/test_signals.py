"""Tests of signals and full disks in trainings: exit statuses and messages."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from fairseq.trainer import Trainer
from omegaconf import OmegaConf
from torch.utils.data._utils import signal_handling

from deepnet_fairseq.plugin import datasets, signals
from deepnet_fairseq.plugin.checkpoints import reading
from deepnet_fairseq.plugin.distributed import agreement
from deepnet_fairseq.plugin.run import Run
from deepnet_fairseq.plugin.signals import Signals, Stopped
from deepnet_fairseq.plugin.trainer import DeepTrainer

from ..conftest import TRAIN_FLAGS
from ..support.errors import refused
from ..support.lives import TINY, logged_numbers, status_of_training

FLAGS = (*TRAIN_FLAGS, *TINY, "--max-tokens", "3000", "--save-interval-updates", "4")
LAST = "checkpoint_last.pt"
FULL_DISK = 50_000  # bytes that a file may have, fewer than a checkpoint's


def lines_of_run(log: Path) -> list[str]:
    """Return the lines of a log that tell of stops, failed saves and errors, without date and level."""
    ours = re.findall(r"^.*(?:deepnet_fairseq\.plugin\.run|error:).*$", log.read_text(), re.MULTILINE)
    lines = [line.rpartition(" | ")[2] for line in ours]
    return [line for line in lines if not re.match("(Saving|Finished saving) checkpoint ", line)]  # lines of every save


def updates_of(log: Path) -> list[int]:
    """Return the numbers of the updates that a log has a line of, in order."""
    return [updates for kind, updates in logged_numbers(log) if kind == "train_inner"]


# A signal to a training


class SignalledTraining(NamedTuple):
    """A training that a signal has ended in its third update of 8."""

    kind: signal.Signals
    command: tuple  # arguments of fairseq-train
    folder: Path  # with its output, first.log, and its checkpoints in run/


# SIGUSR1 is answered as SIGTERM is
SMOKE = signal.SIGUSR1
CAUGHT = [pytest.param(kind, marks=pytest.mark.smoke if kind == SMOKE else ()) for kind in signals.CAUGHT]


@pytest.fixture(scope="module", params=CAUGHT, ids=lambda kind: kind.name)
def signalled_training(request, data, tmp_path_factory):
    """Provide a training that has got one of the signals which it answers."""
    kind = request.param
    folder = tmp_path_factory.mktemp("signalled")
    command = (data, *FLAGS, "--max-update", "8", "--save-dir", folder / "run")
    status = status_of_training(folder / "first.log", *command, at=("update", 3), kind=kind)
    assert status == 128 + kind
    return SignalledTraining(kind, command, folder)


def test_a_signal_is_answered_by_a_save_after_the_current_update(signalled_training):
    """One line names the signal, the update and the checkpoint."""
    checkpoint = signalled_training.folder / "run" / LAST
    (line,) = lines_of_run(signalled_training.folder / "first.log")

    assert signalled_training.kind.name in line
    assert "update 3:" in line
    assert str(checkpoint) in line


class Continued(NamedTuple):
    """Logs of the same command, started twice more: it ends the training, and then finds nothing to do."""

    rest: Path
    after_the_end: Path


@pytest.fixture(scope="module")
def continued_training(signalled_training) -> Continued:
    """Provide the signalled training, continued to its end."""
    _kind, command, folder = signalled_training
    assert reading.updates(folder / "run" / LAST) == 3

    assert status_of_training(folder / "second.log", *command) == 0
    assert status_of_training(folder / "third.log", *command) == 0
    return Continued(rest=folder / "second.log", after_the_end=folder / "third.log")


def test_the_same_command_resumes_after_a_signal(continued_training):
    assert updates_of(continued_training.rest) == [4, 5, 6, 7, 8]


def test_the_same_command_makes_no_more_updates_after_the_end(continued_training):
    """fairseq alone makes one more. The log has only the averages of the epoch, which a signal may have prevented."""
    kinds_of_rows = {kind for kind, _updates in logged_numbers(continued_training.after_the_end)}

    assert updates_of(continued_training.after_the_end) == []
    assert kinds_of_rows == {"train"}


@pytest.mark.parametrize(
    ("echo", "pause", "status"),
    [
        pytest.param(600, 0.0, 7, id="at once"),  # as torchrun repeats a scheduler's signal
        pytest.param(0.1, 0.2, -signal.SIGTERM, id="later"),
    ],
)
def test_a_second_signal_ends_the_process_unless_it_comes_at_once(echo, pause, status):
    """echo: seconds in which a signal may come twice; pause: the fewest seconds between the two.

    status: of the process, which ends itself with 7 if it lives on.
    """
    child = os.fork()
    if child == 0:
        signals.ECHO = echo
        Signals().watch()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(pause)
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(7)

    _pid, ended = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(ended) == status


# A full disk


class TrainingOnAFullDisk(NamedTuple):
    """A training that could not save any more after update 4, and was made to its last update, 12."""

    command: tuple  # arguments of fairseq-train, without the value of --max-update
    folder: Path  # with its output, full.log, and its checkpoints in run/
    old_checkpoint: bytes  # content of the last one that was saved


@pytest.fixture(scope="module")
def training_on_a_full_disk(data, tmp_path_factory):
    """Provide a training whose process may write no file as large as a checkpoint, from update 5 on."""
    folder = tmp_path_factory.mktemp("full")
    command = (data, *FLAGS, "--save-dir", folder / "run", "--max-update")
    assert status_of_training(folder / "first.log", *command, "4") == 0
    old_checkpoint = (folder / "run" / LAST).read_bytes()

    _soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = resource.RLIMIT_FSIZE, (FULL_DISK, hard_limit)
    assert status_of_training(folder / "full.log", *command, "12", limit=limit) == 1
    return TrainingOnAFullDisk(command, folder, old_checkpoint)


def test_a_full_disk_gives_one_warning_a_save_and_one_error_at_the_end(training_on_a_full_disk):
    """Each line names the file that could not be saved, the system's reason, and where a resume would start."""
    folder = training_on_a_full_disk.folder
    *warnings, end = lines_of_run(folder / "full.log")

    assert len(warnings) == 3
    assert warnings[0].startswith(f"{folder}/run/checkpoint_1_8.pt: ")
    assert warnings[1].startswith(f"{folder}/run/{LAST}: ")  # at the end of the epoch
    assert warnings[2].startswith(f"{folder}/run/checkpoint_2_12.pt: ")
    assert "error: " in end
    assert f"{folder}/run/checkpoint_2_12.pt: " in end
    for line in (*warnings, end):
        assert os.strerror(errno.EFBIG) in line
        assert line.endswith(str(folder / "run" / LAST))
    assert "Traceback" not in (folder / "full.log").read_text()


def test_a_full_disk_keeps_the_old_checkpoint_from_which_a_resume_starts(training_on_a_full_disk):
    folder = training_on_a_full_disk.folder
    last = folder / "run" / LAST
    assert last.read_bytes() == training_on_a_full_disk.old_checkpoint

    assert status_of_training(folder / "resumed.log", *training_on_a_full_disk.command, "12") == 0

    assert updates_of(folder / "resumed.log")[0] == 5
    assert reading.updates(last) == 12


# The processes of a training tell each other


@pytest.fixture
def process_of_several(monkeypatch):
    """Provide a function that makes the trainer of one process of several, which watches for signals.

    told: number of the other processes that have got a signal. They tell it with the values that all processes sum up
    for the log; any further message between processes fails the test.
    """
    runs = []

    def make(told: float) -> DeepTrainer:
        def aggregate(trainer, logged, size, signalled, ignore):
            """Stand in for fairseq's sum over processes of the numbers behind `logged`."""
            return logged, [size, signalled + told]

        monkeypatch.setattr(Trainer, "_aggregate_logging_outputs", aggregate)
        monkeypatch.setattr(agreement, "largest", lambda *_: pytest.fail("a message"))
        trainer = DeepTrainer.__new__(DeepTrainer)  # without a model, which these tests do not need
        trainer.run = Run(trainer)
        trainer.run.signals.watch()
        runs.append(trainer.run)
        return trainer

    yield make
    for run in runs:
        run.stop()


@pytest.mark.parametrize("told", [0.0, 1.0])
def test_what_processes_tell_of_signals_does_not_change_what_they_log(told, process_of_several):
    trainer = process_of_several(told)

    summed = trainer._aggregate_logging_outputs(["logged"], 3.0)

    assert summed == (["logged"], [3.0])


def test_a_signal_to_another_process_stops_this_one(process_of_several):
    trainer = process_of_several(told=1.0)
    trainer._aggregate_logging_outputs(["logged"], 3.0)  # as the trainer does after each update

    with pytest.raises(Stopped):
        trainer.run.signals.raise_if_signalled(torch.device("cpu"))


def test_without_a_signal_to_any_process_this_one_goes_on(process_of_several):
    trainer = process_of_several(told=0.0)
    trainer._aggregate_logging_outputs(["logged"], 3.0)  # as the trainer does after each update

    trainer.run.signals.raise_if_signalled(torch.device("cpu"))  # does not raise Stopped


# The handlers


@pytest.fixture
def default_handlers():
    """Restore the handlers of the signals after a test."""
    handlers = {kind: signal.getsignal(kind) for kind in signals.CAUGHT}
    yield
    for kind, handler in handlers.items():
        signal.signal(kind, handler)


def send_usr1() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def test_the_handlers_after_a_training_are_those_before(default_handlers):
    training = Signals()
    training.watch()
    assert training.watching

    training.unwatch()

    assert not training.watching
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_training_that_has_ended_forgets_its_signals(default_handlers):
    training = Signals()
    training.watch()
    send_usr1()
    assert training.first_signal == signal.SIGUSR1

    training.unwatch()

    assert training.first_signal == 0


@pytest.fixture
def two_trainings(default_handlers):
    """Provide two trainings of this process that watch for signals; the second one has begun to watch later."""
    first = Signals()
    first.watch()
    second = Signals()
    second.watch()
    return first, second


def test_the_training_that_began_to_watch_later_gets_the_signals(two_trainings):
    first, second = two_trainings

    send_usr1()

    assert first.first_signal == 0
    assert second.first_signal == signal.SIGUSR1


def test_the_end_of_the_first_training_leaves_the_handler_of_the_second(two_trainings):
    first, second = two_trainings

    first.unwatch()
    send_usr1()

    assert second.first_signal == signal.SIGUSR1
    second.unwatch()
    assert not second.watching


def test_the_end_of_the_second_training_gives_the_signals_to_the_first(two_trainings):
    first, second = two_trainings

    second.unwatch()
    send_usr1()

    assert first.first_signal == signal.SIGUSR1
    first.unwatch()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


# Processes that load data


@pytest.fixture
def loading_process():
    """Provide a child process that has the signal handlers of one that loads data for torch's DataLoader."""
    is_torchs_own = signal_handling._set_worker_signal_handlers is torch._C._set_worker_signal_handlers
    assert not is_torchs_own, "register() has not replaced it"
    fork = multiprocessing.get_context("fork")
    ready = fork.Event()
    worker = fork.Process(target=_pretend_to_load_data, args=(ready,))
    worker.start()
    assert ready.wait(60)
    yield worker
    worker.kill()


def _pretend_to_load_data(ready) -> None:
    signal_handling._set_worker_signal_handlers()  # torch's function, which the package has replaced
    ready.set()
    time.sleep(300)
    os._exit(5)


@pytest.mark.parametrize("kind", signals.CAUGHT, ids=lambda kind: kind.name)
def test_a_process_that_loads_data_ignores_a_signal_to_the_whole_job(kind, loading_process):
    """Such a signal comes from a process that is not the parent: here from the program `kill`."""
    subprocess.run(["kill", f"-{int(kind)}", str(loading_process.pid)], check=True)

    loading_process.join(0.3)

    assert loading_process.exitcode is None  # it runs


def test_a_process_that_loads_data_ends_with_its_parent(loading_process):
    loading_process.terminate()  # SIGTERM from the parent

    loading_process.join(60)

    assert loading_process.exitcode == 0


CONFIG_WITH_LOADERS = OmegaConf.create({"dataset": {"num_workers": 2}, "checkpoint": {"save_dir": "runs/mine"}})


def raise_while_reading_a_batch(error: Exception) -> None:
    """Raise an error as torch's DataLoader does, and pass it to the function by which fairseq-train explains it.

    The function raises a UserError if the error comes from a killed process that loads data.
    """

    def _try_get_data():  # the name of the function in torch's DataLoader
        raise error

    try:
        _try_get_data()
    except type(error) as raised:
        datasets.explain_lost_loader(CONFIG_WITH_LOADERS, raised)


@pytest.mark.parametrize("error", [RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), EOFError()])
def test_a_killed_process_that_loads_data_is_told_in_one_line(error):
    """torch raises one of the two errors, according to the call in which it notices the loss.

    The line names the folder from which a resume starts.
    """
    with refused("--num-workers 2") as caught:
        raise_while_reading_a_batch(error)

    assert "runs/mine" in caught.value.way_out


def test_another_error_while_reading_a_batch_is_not_explained():
    raise_while_reading_a_batch(RuntimeError("another"))  # no UserError: fairseq-train raises the error again
