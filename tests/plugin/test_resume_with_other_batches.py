"""Tests of resuming in the middle of an epoch with other batches: of another size, or of other data."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from fairseq.data import iterators

from deepnet_fairseq.plugin import datasets

from ..conftest import TRAIN_FLAGS
from ..support.lives import TINY, status_of_training

FLAGS = (*TRAIN_FLAGS, *TINY)


# The place in an epoch, converted


class Integers(torch.utils.data.Dataset):
    """Data set of the integers from 0 to size - 1."""

    def __init__(self, size: int):
        self.size = size

    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return self.size


def epoch_of(batches: int, processes: int = 1, skip_remainder: bool = False) -> iterators.EpochBatchIterator:
    """Make the iterator of an epoch of `batches` batches, of one number each, on the first of some processes."""
    return iterators.EpochBatchIterator(
        dataset=Integers(batches),
        collate_fn=list,
        batch_sampler=[[number] for number in range(batches)],
        num_shards=processes,
        skip_remainder_batch=skip_remainder,
    )


def place_after(done: int, batches: int | None, processes: int = 1) -> dict:
    """Return the state of an iterator, as a checkpoint holds it, after `done` batches of each process in epoch 2.

    batches: number in the epoch, over all processes; None as in checkpoints of fairseq and of earlier versions
    """
    place = {"epoch": 2, "version": 2, "shuffle": True, "iterations_in_epoch": done, "num_shards": processes}
    if batches is not None:
        place["batches"] = batches
    return place


class Resume(NamedTuple):
    """A resume with other batches, and where in the epoch it is to begin."""

    saved: dict  # the place in the checkpoint
    epoch: iterators.EpochBatchIterator  # that of the resumed training
    update_freq: int  # batches that each of its processes takes for an update
    batches_done: int  # by each of its processes, expected


RESUMES = {  # place_after(batches done, of), epoch_of(batches), batches of an update, batches done
    "nothing changed": Resume(place_after(6, 10), epoch_of(10), 2, 6),
    "a tenth of the batches": Resume(place_after(75, 100), epoch_of(10), 1, 7),  # 75/100 of 10, rounded down
    "ten times the batches": Resume(place_after(7, 10), epoch_of(100), 1, 70),
    "at the very end": Resume(place_after(138, 139), epoch_of(40), 1, 39),  # 138/139 of 40, rounded down
    "two processes for one": Resume(place_after(6, 10), epoch_of(10, processes=2), 1, 3),  # 6 / 2
    "one process for two": Resume(place_after(3, 10, processes=2), epoch_of(10), 1, 6),  # 3 x 2
    # 6/10 of 20 batches, by two processes
    "two processes with half as large batches": Resume(place_after(6, 10), epoch_of(20, processes=2), 1, 6),
    "larger updates": Resume(place_after(5, 10), epoch_of(10), 4, 4),  # the fifth batch is inside the second update
    "one update of the whole epoch": Resume(place_after(5, 8), epoch_of(8), 100, 0),  # at the epoch's beginning
    # 9 / 2 by each process, rounded down to whole updates
    "larger updates on two processes": Resume(place_after(9, 20), epoch_of(20, processes=2), 3, 3),
    # fairseq drops the last batch: 9 are left, of which the resume makes the last one again
    "no remainder any more": Resume(place_after(9, 10), epoch_of(10, skip_remainder=True), 1, 8),
    "an old checkpoint": Resume(place_after(6, None), epoch_of(10), 1, 6),
    "an old checkpoint of longer epochs": Resume(place_after(60, None), epoch_of(10), 1, 0),  # the epoch begins again
}


def place_now(resume: Resume) -> dict:
    """Return the saved place, converted to the batches that the training has now."""
    return datasets.converted_place(
        resume.saved, resume.epoch, resume.update_freq, skip_remainder=resume.epoch.skip_remainder_batch
    )


@pytest.mark.parametrize("name", RESUMES)
def test_a_resume_is_after_the_same_share_of_the_epoch(name):
    """The resume may be a little before that share, at the beginning of an update that the epoch still has.

    An old checkpoint tells no share: the resume is after as many batches, or at the beginning of a shorter epoch.
    """
    resume = RESUMES[name]

    now = place_now(resume)

    assert now["iterations_in_epoch"] == resume.batches_done
    assert now["epoch"] == 2
    assert now[datasets.BEGUN]


@pytest.mark.parametrize("name", RESUMES)
def test_the_log_warns_of_a_resume_at_another_place(name, caplog):
    """The places are compared by batches over all processes; nothing is said where they are the same."""
    resume = RESUMES[name]
    caplog.set_level("WARNING", datasets.log.name)

    now = place_now(resume)

    processes = resume.epoch.num_shards
    saved_by = resume.saved.get(datasets.PROCESSES, processes)
    is_elsewhere = now["iterations_in_epoch"] * processes != resume.saved["iterations_in_epoch"] * saved_by
    assert bool(caplog.messages) == is_elsewhere


@pytest.mark.parametrize("name", RESUMES)
def test_after_a_resume_the_rest_of_the_epoch_has_an_update_and_ends(name):
    """fairseq's iterators take the converted place for their own."""
    resume = RESUMES[name]
    epoch = resume.epoch
    epoch.load_state_dict(place_now(resume))

    rest = iterators.GroupedIterator(
        epoch.next_epoch_itr(), resume.update_freq, skip_remainder_batch=epoch.skip_remainder_batch
    )
    updates = list(rest)

    assert len(updates) >= 1
    assert epoch.end_of_epoch()


@pytest.mark.parametrize("place", [{"epoch": 3, "version": 2, "iterations_in_epoch": 0}, {"epoch": 1}])
def test_a_place_between_two_epochs_stays(place):
    now = datasets.converted_place(place, epoch_of(10), update_freq=3, skip_remainder=False)

    assert now == place


def test_an_epoch_of_unknown_length_is_shared_by_its_processes():
    """Six batches that one process has done are three of each of two processes."""
    without_batches = SimpleNamespace(num_shards=2)
    assert datasets.number_of_batches(without_batches) is None

    now = datasets.converted_place(place_after(6, 10), without_batches, update_freq=1, skip_remainder=False)

    assert now["iterations_in_epoch"] == 3


# Trainings

UPDATES_BEGUN = 33  # of about 48 in an epoch, each of one batch
CHANGED_FLAGS = (
    "--max-tokens 3000", "--max-tokens 250", "--batch-size 4", "--required-batch-size-multiple 1", "--update-freq 7",
    "--update-freq 1000", "--skip-remainder-batch", "--train-subset test",
)  # fmt: skip
SAME_PLACE = "--skip-remainder-batch"  # the only change after which the batches done are as many as before


class BegunTraining(NamedTuple):
    """A checkpoint in the middle of the first epoch."""

    checkpoint: Path
    batches: int  # of the epoch


@pytest.fixture(scope="module")
def begun_training(data, tmp_path_factory) -> BegunTraining:
    """Provide a training that has made UPDATES_BEGUN updates."""
    folder = tmp_path_factory.mktemp("begun")
    status = status_of_training(folder / "log", data, *FLAGS, "--max-update", UPDATES_BEGUN, "--save-dir", folder)
    assert status == 0

    checkpoint = folder / "checkpoint_last.pt"
    place = torch.load(checkpoint, weights_only=True)["extra_state"]["train_iterator"]
    assert place["iterations_in_epoch"] == UPDATES_BEGUN
    assert place["batches"] > UPDATES_BEGUN
    return BegunTraining(checkpoint, place["batches"])


class ResumedTraining(NamedTuple):
    """A training that was resumed with a changed flag, up to the end of its second epoch."""

    change: str
    log: str

    def updates_of_an_epoch(self) -> int:
        """Return the updates of a whole epoch with the changed flag, as fairseq logs them."""
        return int(re.findall(r"grouped total_num_itrs = (\d+)", self.log)[-1])

    def ends_of_epochs(self) -> list[int]:
        """Return the number of updates at the end of each epoch."""
        return [int(updates) for updates in re.findall(r'"train_num_updates": "(\d+)"', self.log)]


@pytest.fixture(
    scope="module",
    params=[CHANGED_FLAGS[0], *(pytest.param(flags, marks=pytest.mark.smoke) for flags in CHANGED_FLAGS[1:])],
)
def resumed_training(request, begun_training, data, tmp_path_factory) -> ResumedTraining:
    """Provide the begun training, resumed with one of CHANGED_FLAGS."""
    change = request.param
    folder = tmp_path_factory.mktemp("resumed")
    shutil.copy(begun_training.checkpoint, folder)

    status = status_of_training(folder / "log", data, *FLAGS, "--max-epoch", "2", "--save-dir", folder, *change.split())

    log = (folder / "log").read_text()
    assert status == 0, log[-3000:]
    assert "Traceback" not in log
    return ResumedTraining(change, log)


def test_a_resume_with_other_batches_makes_the_share_of_the_epoch_that_was_left(resumed_training, begun_training):
    share_left = 1 - UPDATES_BEGUN / begun_training.batches
    expected = share_left * resumed_training.updates_of_an_epoch()

    first_end, _second_end = resumed_training.ends_of_epochs()

    assert first_end - UPDATES_BEGUN == pytest.approx(expected, abs=1)


def test_the_epoch_after_a_resume_with_other_batches_is_whole(resumed_training):
    first_end, second_end = resumed_training.ends_of_epochs()

    assert second_end - first_end == resumed_training.updates_of_an_epoch()


def test_one_warning_says_that_the_begun_epoch_goes_on_at_another_place(resumed_training):
    warnings = [line for line in resumed_training.log.splitlines() if "WARNING" in line and "epoch 1 " in line]

    if resumed_training.change == SAME_PLACE:
        assert warnings == []
    else:
        assert len(warnings) == 1
