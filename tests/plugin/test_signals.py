"""Tests of signals and full disks in trainings: exit statuses and messages."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import time

import pytest
import torch
from fairseq.trainer import Trainer
from omegaconf import OmegaConf
from torch.utils.data._utils import signal_handling

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin import datasets, signals
from deepnet_fairseq.plugin.checkpoints import reading
from deepnet_fairseq.plugin.distributed import agreement
from deepnet_fairseq.plugin.run import Run
from deepnet_fairseq.plugin.signals import Signals, Stopped
from deepnet_fairseq.plugin.trainer import DeepTrainer

from ..conftest import TRAIN_FLAGS
from ..support.lives import TINY, live, rows

RUN = (*TRAIN_FLAGS, *TINY, "--max-tokens", "3000", "--save-interval-updates", "4")
LAST = "checkpoint_last.pt"


def said(log) -> list[str]:
    """Return what the run says but for its saves that succeed, without date and level."""
    ours = re.findall(r"^.*(?:deepnet_fairseq\.plugin\.run|error:).*$", log.read_text(), re.MULTILINE)
    lines = [line.rpartition(" | ")[2] for line in ours]
    return [line for line in lines if not re.match("(Saving|Finished saving) checkpoint ", line)]


@pytest.mark.parametrize("kind", signals.CAUGHT, ids=lambda kind: kind.name)
def test_a_signal_is_answered_by_a_save(kind, data, tmp_path):
    """A signal is answered by a save after the current update, from which the next start resumes."""
    log, command = tmp_path / "log", (data, *RUN, "--max-update", "8", "--save-dir", tmp_path / "run")
    assert live(log, *command, at=("update", 3), kind=kind) == 128 + kind
    path = tmp_path / "run" / LAST
    assert reading.updates(path) == 3
    assert said(log) == [f"stopped by {kind.name} after update 3: {path} is saved, the same command goes on from it"]
    assert live(tmp_path / "second", *command) == 0
    assert [updates for kind, updates in rows(tmp_path / "second") if kind == "train_inner"] == [4, 5, 6, 7, 8]
    assert live(tmp_path / "over", *command) == 0  # a finished run makes no more updates, whereas fairseq makes one
    assert {kind for kind, _ in rows(tmp_path / "over")} == {"train"}  # averages that may not have been logged yet


def test_full_disk_is_a_warning_and_the_end_no_success(data, tmp_path):
    """A full disk gives one warning a save, keeps the old file, and ends the training with status 1."""
    log, save = tmp_path / "log", tmp_path / "run"
    command = (data, *RUN, "--save-dir", save)
    assert live(log, *command, "--max-update", "4") == 0
    before = (save / LAST).read_bytes()
    full = resource.RLIMIT_FSIZE, (50_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    assert live(log, *command, "--max-update", "12", limit=full) == 1
    assert (save / LAST).read_bytes() == before
    warning, *_, end = said(log)
    failed, start = "could not be saved (File too large)", f"a resume would start from {save / LAST}"
    assert warning == f"{save}/checkpoint_1_8.pt: {failed}; the training goes on, {start}"
    assert end.endswith(f"the last save failed: {save}/checkpoint_2_12.pt: {failed}; {start}")
    assert "Traceback" not in log.read_text()
    assert live(log, *command, "--max-update", "12") == 0 and reading.updates(save / LAST) == 12


def test_second_signal_ends_at_once():
    """A second signal ends the process at once, unless it is an echo: torchrun repeats a scheduler's signal."""
    for pause, status in ((0.0, 7), (0.2, -signal.SIGTERM)):
        if not (child := os.fork()):
            signals.ECHO = 0.1
            Signals().watch()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(pause)
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status


@pytest.mark.parametrize("others", [0.0, 1.0])
def test_processes_tell_each_other_with_what_they_log(others, monkeypatch):
    """A signal to another process stops this one through the values that all of them log, without extra messages."""
    trainer = DeepTrainer.__new__(DeepTrainer)
    trainer.run = Run(trainer)
    trainer.run.signals.watch()
    monkeypatch.setattr(agreement, "largest", lambda *_: pytest.fail("a message"))

    def aggregate(trainer, logged, size, told, ignore):
        return logged, [size, told + others]

    monkeypatch.setattr(Trainer, "_aggregate_logging_outputs", aggregate)
    assert trainer._aggregate_logging_outputs(["logged"], 3.0) == (["logged"], [3.0])
    with pytest.raises(Stopped) if others else contextlib.nullcontext():
        trainer.run.signals.raise_if_signalled(torch.device("cpu"))
    trainer.run.stop()


def test_handlers_are_those_before():
    training = Signals()
    training.watch()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert training.first_signal == signal.SIGUSR1 and training.watching
    training.unwatch()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL and not training.watching
    assert training.first_signal == 0, "a later training here would be told of it"


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_handlers_of_two_trainings_are_those_of_the_one_that_runs(first_ends_first):
    """The training that began to watch later gets the signals; after both have ended the first handlers are back."""
    first, second = Signals(), Signals()
    first.watch()
    second.watch()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert (first.first_signal, second.first_signal) == (0, signal.SIGUSR1)

    if first_ends_first:
        first.unwatch()
        assert signal.getsignal(signal.SIGUSR1) == second._handle
        second.unwatch()
        assert not second.watching
    else:
        second.unwatch()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert first.first_signal == signal.SIGUSR1
        first.unwatch()
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    for kind in signals.CAUGHT:
        signal.signal(kind, signal.SIG_DFL)


def _load_data(ready) -> None:
    signal_handling._set_worker_signal_handlers()
    ready.set()
    time.sleep(30)
    os._exit(5)


def test_processes_that_load_data_outlive_a_jobs_signal():
    """Processes that load data ignore a signal to the whole job, and end with their parent."""
    fork = multiprocessing.get_context("fork")
    ready = fork.Event()
    worker = fork.Process(target=_load_data, args=(ready,))
    worker.start()
    assert ready.wait(10)
    for kind in signals.CAUGHT:
        subprocess.run(["kill", f"-{int(kind)}", str(worker.pid)], check=True)
    worker.join(0.3)
    assert worker.is_alive()
    worker.terminate()
    worker.join(10)
    assert worker.exitcode == 0


@pytest.mark.parametrize("error", [RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), EOFError()])
def test_a_loader_that_is_killed_is_one_line(error):
    """A killed loader gives one line, in whichever call it is noticed; other errors stay as they are."""
    cfg = OmegaConf.create({"dataset": {"num_workers": 2}, "checkpoint": {"save_dir": "runs/mine"}})

    def _try_get_data(error):  # the name of the function in torch's DataLoader
        try:
            raise error
        except type(error) as raised:
            datasets.explain_lost_loader(cfg, raised)

    with pytest.raises(UserError, match="--num-workers 2: a process that loads data was killed, .* runs/mine$"):
        _try_get_data(error)
    _try_get_data(RuntimeError("another"))
