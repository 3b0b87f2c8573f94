"""Tests of resuming in the middle of an epoch with other batches: of another size, or of other data."""

from __future__ import annotations

import re
import shutil
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from fairseq.data import iterators

from deepnet_fairseq.plugin import datasets

from ..conftest import TRAIN_FLAGS
from ..support.lives import TINY, live

FLAGS = (*TRAIN_FLAGS, *TINY)


# The place in an epoch, converted


class Integers(torch.utils.data.Dataset):
    """Data set of the numbers below `size`."""

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

    batches: of the epoch, over all processes; None as in checkpoints of fairseq and of earlier versions
    """
    place = {"epoch": 2, "version": 2, "shuffle": True, "iterations_in_epoch": done, "num_shards": processes}
    if batches is not None:
        place["batches"] = batches
    return place


class Resume(NamedTuple):
    """A place in a checkpoint; the epoch and the batches of an update that a training has now; the place now."""

    place: dict
    epoch: iterators.EpochBatchIterator
    batches_of_update: int
    batches_done: int  # by each process


RESUMES = {
    "nothing changed": Resume(place_after(6, 10), epoch_of(10), 2, 6),
    "a tenth of the batches": Resume(place_after(75, 100), epoch_of(10), 1, 7),
    "ten times the batches": Resume(place_after(7, 10), epoch_of(100), 1, 70),
    "at the very end": Resume(place_after(138, 139), epoch_of(40), 1, 39),
    "two processes for one": Resume(place_after(6, 10), epoch_of(10, processes=2), 1, 3),
    "one process for two": Resume(place_after(3, 10, processes=2), epoch_of(10), 1, 6),
    "two processes with half as large batches": Resume(place_after(6, 10), epoch_of(20, processes=2), 1, 6),
    "larger updates": Resume(place_after(5, 10), epoch_of(10), 4, 4),
    "one update of the whole epoch": Resume(place_after(5, 8), epoch_of(8), 100, 0),
    "larger updates on two processes": Resume(place_after(9, 20), epoch_of(20, processes=2), 3, 3),
    "no remainder any more": Resume(place_after(9, 10), epoch_of(10, skip_remainder=True), 1, 8),
    "an old checkpoint": Resume(place_after(6, None), epoch_of(10), 1, 6),
    "an old checkpoint of longer epochs": Resume(place_after(60, None), epoch_of(10), 1, 0),
}


def converted_place(resume: Resume) -> dict:
    skip_remainder = resume.epoch.skip_remainder_batch
    return datasets.converted_place(resume.place, resume.epoch, resume.batches_of_update, skip_remainder)


@pytest.mark.parametrize("name", RESUMES)
def test_a_resume_is_after_the_same_share_of_the_epoch(name):
    resume = RESUMES[name]

    now = converted_place(resume)

    assert now["iterations_in_epoch"] == resume.batches_done
    assert now["epoch"] == 2
    assert now[datasets.BEGUN]


@pytest.mark.parametrize("name", RESUMES)
def test_a_resume_leaves_the_epoch_an_update_and_ends_it(name):
    """fairseq counts the updates that are left from the converted place."""
    resume = RESUMES[name]
    epoch = resume.epoch

    epoch.load_state_dict(converted_place(resume))
    updates = iterators.GroupedIterator(
        epoch.next_epoch_itr(), resume.batches_of_update, skip_remainder_batch=epoch.skip_remainder_batch
    )

    assert len(list(updates)) >= 1
    assert epoch.end_of_epoch()


@pytest.mark.parametrize("place", [{"epoch": 3, "version": 2, "iterations_in_epoch": 0}, {"epoch": 1}])
def test_a_place_between_two_epochs_stays(place):
    assert datasets.converted_place(place, epoch_of(10), update_freq=3, skip_remainder=False) == place


def test_an_epoch_of_unknown_length_is_shared_by_its_processes():
    without_batches = SimpleNamespace(num_shards=2)
    assert datasets.number_of_batches(without_batches) is None

    now = datasets.converted_place(place_after(6, 10), without_batches, update_freq=1, skip_remainder=False)

    assert now["iterations_in_epoch"] == 3


# Trainings

UPDATES_BEGUN = 33  # of about 48 in an epoch
CHANGED_FLAGS = (
    "--max-tokens 3000", "--max-tokens 250", "--batch-size 4", "--required-batch-size-multiple 1", "--update-freq 7",
    "--update-freq 1000", "--skip-remainder-batch", "--train-subset test",
)  # fmt: skip
SAME_PLACE = "--skip-remainder-batch"  # the only change after which the batches done are as many as before


@pytest.fixture(scope="module")
def begun_training(data, tmp_path_factory):
    """Provide the checkpoint of 33 updates in the first epoch of a training, and its number of batches."""
    folder = tmp_path_factory.mktemp("begun")
    status = live(folder / "log", data, *FLAGS, "--max-update", UPDATES_BEGUN, "--save-dir", folder)
    assert status == 0

    checkpoint = folder / "checkpoint_last.pt"
    place = torch.load(checkpoint, weights_only=True)["extra_state"]["train_iterator"]
    assert place["iterations_in_epoch"] == UPDATES_BEGUN
    assert place["batches"] > UPDATES_BEGUN
    return checkpoint, place["batches"]


@pytest.mark.parametrize(
    "change",
    [CHANGED_FLAGS[0], *(pytest.param(flags, marks=pytest.mark.smoke) for flags in CHANGED_FLAGS[1:])],
)
def test_a_training_resumes_with_other_batches(change, begun_training, data, tmp_path):
    """Two epochs end, the first after the share of it that was left, and the second whole.

    One warning, of the epoch that was begun, says where it goes on if that is another place.
    """
    checkpoint, batches = begun_training
    shutil.copy(checkpoint, tmp_path)

    status = live(tmp_path / "log", data, *FLAGS, "--max-epoch", "2", "--save-dir", tmp_path, *change.split())

    log = (tmp_path / "log").read_text()
    assert status == 0, log[-3000:]
    assert "Traceback" not in log
    updates_of_an_epoch = int(re.findall(r"grouped total_num_itrs = (\d+)", log)[-1])
    first_end, second_end = (int(updates) for updates in re.findall(r'"train_num_updates": "(\d+)"', log))
    share_left = 1 - UPDATES_BEGUN / batches
    assert first_end - UPDATES_BEGUN == pytest.approx(share_left * updates_of_an_epoch, abs=1)
    assert second_end - first_end == updates_of_an_epoch
    warnings = [line for line in log.splitlines() if "WARNING" in line and "epoch 1 " in line]
    assert len(warnings) == (0 if change == SAME_PLACE else 1)
