"""Tests that a training has a state of its own: beside another in one process, and after errors and resumes."""

from __future__ import annotations

import json
import logging
import re
import signal
from pathlib import Path
from typing import NamedTuple

import fairseq_cli.train
import pytest
import torch
from fairseq import checkpoint_utils, tasks, utils
from fairseq.data.iterators import GroupedIterator
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from deepnet_fairseq.plugin.checkpoints import lock, reading
from deepnet_fairseq.plugin.run import Run
from deepnet_fairseq.plugin.signals import CAUGHT
from deepnet_fairseq.plugin.trainer import parse_training_flags

from ..conftest import TRAIN_FLAGS
from ..faults import states
from ..support.broken import flip_a_bit
from ..support.errors import refused
from ..support.lives import TINY

# a validation and checkpoints after every second update
VALIDATED = [flag for flag in TRAIN_FLAGS if flag not in ("--disable-validation", "--no-epoch-checkpoints")]
FLAGS = (*VALIDATED, *TINY, "--dropout", "0", "--max-tokens", "3000", "--save-interval-updates", "2", "--patience", "9")


class SteppedTraining:
    """fairseq-train in steps: what its main does up to the first update, then one update at a time.

    data: binarised; folder: --save-dir, from which it resumes; flags: beside FLAGS
    """

    def __init__(self, data: Path, folder: Path, *flags: str):
        args = parse_training_flags([str(data), *FLAGS, "--save-dir", str(folder), *flags])
        self.cfg = convert_namespace_to_omegaconf(args)
        utils.set_torch_seed(self.cfg.common.seed)

        self.task = tasks.setup_task(self.cfg.task)
        model = self.task.build_model(self.cfg.model)
        criterion = self.task.build_criterion(self.cfg.criterion)
        self.task.load_dataset("valid", combine=False, epoch=1)

        self.trainer = fairseq_cli.train.Trainer(self.cfg, self.task, model, criterion)
        _extra_state, self.epoch_batches = checkpoint_utils.load_checkpoint(self.cfg.checkpoint, self.trainer)
        self.trainer.begin_epoch(1)
        self.batches_of_updates = GroupedIterator(self.epoch_batches.next_epoch_itr(shuffle=True), 1)

    def step(self, updates: int = 1) -> None:
        """Make some updates, and validate and save after each where that is due."""
        for _ in range(updates):
            self.trainer.train_step(next(self.batches_of_updates))
            fairseq_cli.train.validate_and_save(
                self.cfg, self.trainer, self.task, self.epoch_batches, valid_subsets=["valid"], end_of_epoch=False
            )

    def end(self) -> None:
        """Free the folder and the signals, as at the end of fairseq-train."""
        self.trainer.run.stop()


# Two trainings in one process

TRAININGS = {  # name -> flags; without a learning rate no validation loss is better than the one before
    "improving": ("--seed", "1"),
    "standing still": ("--seed", "2", "--lr", "1e-9"),
}
UPDATES = 6


@pytest.fixture(scope="module")
def trained_alone(data, tmp_path_factory):
    """Provide the folders, by name, of the two trainings made one after the other."""
    folder = tmp_path_factory.mktemp("alone")
    for name, flags in TRAININGS.items():
        training = SteppedTraining(data, folder / name, *flags)
        training.step(UPDATES)
        training.end()
    return {name: folder / name for name in TRAININGS}


@pytest.fixture(scope="module")
def trained_by_turns(data, tmp_path_factory):
    """Provide the folders, by name, of the two trainings made at the same time, an update each by turns."""
    folder = tmp_path_factory.mktemp("by_turns")
    trainings = [SteppedTraining(data, folder / name, *flags) for name, flags in TRAININGS.items()]
    for _ in range(UPDATES):
        for training in trainings:
            training.step()
    for training in trainings:
        training.end()
    return {name: folder / name for name in TRAININGS}


def last_state(folder: Path) -> dict:
    """Return the last checkpoint of a folder without fairseq's averages for the log, which all trainings share."""
    state = states.load(folder / "checkpoint_last.pt")
    del state["extra_state"]["metrics"]
    del state["extra_state"]["deepnet_training"]["averages"]
    return state


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_beside_another_saves_what_it_saves_alone(name, trained_by_turns, trained_alone):
    """The training's weights, best loss and patience are not those of the other training, nor mixed with them."""
    by_turns = last_state(trained_by_turns[name])
    alone = last_state(trained_alone[name])

    assert list(states.differences(by_turns, alone)) == []


def test_two_trainings_by_turns_have_best_losses_of_their_own(trained_by_turns):
    best_losses = {}
    for name, folder in trained_by_turns.items():
        best_losses[name] = last_state(folder)["extra_state"]["best"]

    assert best_losses["improving"] != best_losses["standing still"]


@pytest.mark.parametrize("function", [checkpoint_utils.save_checkpoint, fairseq_cli.train.should_stop_early])
def test_no_best_loss_is_kept_in_fairseqs_functions(function, trained_by_turns):
    """fairseq keeps the best loss as an attribute of these functions, for all trainings of the process."""
    assert not hasattr(function, "best")


# The folder of a training


def test_a_training_in_the_folder_of_another_is_refused_while_that_runs(data, tmp_path, monkeypatch):
    """The first training's folder stays locked after the refusal, so that a second try is refused, too."""
    monkeypatch.setattr(lock, "GRACE", 0.1)  # seconds that a training waits for another to end
    first = SteppedTraining(data, tmp_path)

    for _ in range(2):
        with refused(tmp_path):
            SteppedTraining(data, tmp_path)

    first.end()


def test_the_folder_of_a_training_that_has_ended_is_free(data, tmp_path):
    """The second training would be refused if the folder were locked."""
    first = SteppedTraining(data, tmp_path)
    first.end()

    second = SteppedTraining(data, tmp_path)
    second.end()


def handlers() -> dict:
    """Return the handlers of the signals that a training answers."""
    return {kind: signal.getsignal(kind) for kind in CAUGHT}


def test_an_error_in_a_resume_frees_folder_and_signals(data, tmp_path):
    first = SteppedTraining(data, tmp_path)
    first.step(2)
    first.end()
    handlers_before = handlers()
    foreign = tmp_path / "foreign.pt"
    foreign.write_bytes(b"of another program")

    with refused(foreign):
        SteppedTraining(data, tmp_path, "--restore-file", str(foreign))

    assert handlers() == handlers_before
    SteppedTraining(data, tmp_path).end()  # is not refused: the folder is free


class Updates(NamedTuple):
    """Numbers of updates in the last two checkpoints of a folder."""

    last: int
    previous: int


def updates_in(folder: Path) -> Updates:
    """Read the numbers of updates in checkpoint_last.pt and checkpoint_previous.pt."""
    last = folder / "checkpoint_last.pt"
    return Updates(reading.updates(last), reading.updates(folder / "checkpoint_previous.pt"))


def test_a_damaged_last_checkpoint_does_not_push_the_previous_one_out(data, tmp_path):
    """A resume starts from checkpoint_previous, which stays until two whole checkpoints have been saved."""
    first = SteppedTraining(data, tmp_path, "--keep-interval-updates", "1")
    first.step(4)  # saved after 2 and 4
    first.end()
    for damaged in ("checkpoint_last.pt", "checkpoint_1_4.pt", "checkpoint_best.pt"):  # all that hold update 4
        flip_a_bit(tmp_path / damaged)

    second = SteppedTraining(data, tmp_path)
    resumed_at = second.trainer.get_num_updates()
    second.step(2)
    after_one_save = updates_in(tmp_path)
    second.step(2)
    after_two_saves = updates_in(tmp_path)
    second.end()

    assert resumed_at == 2
    assert after_one_save == Updates(last=4, previous=2)
    assert after_two_saves == Updates(last=6, previous=4)


# Signals, and what a checkpoint holds


@pytest.fixture(params=CAUGHT, ids=lambda kind: kind.name)
def signal_kind(request):
    """Provide a signal, whose handler is restored afterwards."""
    handler = signal.getsignal(request.param)
    yield request.param
    signal.signal(request.param, handler)


def test_a_signal_between_two_updates_saves_and_ends_the_run(signal_kind, data, tmp_path, caplog):
    """The program ends with the status 128 + signal."""
    caplog.set_level(logging.INFO)
    training = SteppedTraining(data, tmp_path)
    training.trainer.run.signals.watch()  # as fairseq-train does before its first update
    training.step()

    signal.raise_signal(signal_kind)
    with pytest.raises(SystemExit) as ended:
        training.step()
    training.end()

    assert ended.value.code == 128 + signal_kind
    assert reading.updates(tmp_path / "checkpoint_last.pt") == 2


@pytest.fixture(scope="module")
def checkpoint_of_a_run(data, tmp_path_factory):
    """Provide the content of a checkpoint of a training with --stop-stuck, which adds an entry."""
    folder = tmp_path_factory.mktemp("content")
    training = SteppedTraining(data, folder, "--stop-stuck", "90")
    training.step(2)
    training.end()
    return torch.load(folder / "checkpoint_last.pt")


def test_the_docstring_of_run_lists_what_a_checkpoint_holds(checkpoint_of_a_run):
    """Each key of a checkpoint, and of its extra_state, is a word of the docstring."""
    words = set(re.findall(r"\w+", Run.__doc__))

    assert checkpoint_of_a_run.keys() <= words
    assert checkpoint_of_a_run["extra_state"].keys() <= words
    assert "deepnet_stuck" in checkpoint_of_a_run["extra_state"]


def test_the_patience_in_a_checkpoint_is_plain_data(checkpoint_of_a_run):
    patience = checkpoint_of_a_run["extra_state"]["deepnet_training"]["patience"]

    assert patience
    assert json.loads(json.dumps(patience)) == patience
