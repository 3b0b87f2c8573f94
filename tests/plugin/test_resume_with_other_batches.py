"""Tests of resuming in the middle of an epoch with other batches: of another size, or of other data."""

from __future__ import annotations

import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import iterators

from deepnet_fairseq.plugin import datasets

from ..conftest import TRAIN_FLAGS
from ..support.lives import TINY, live

FLAGS = (*TRAIN_FLAGS, *TINY)
TRAINED = re.compile(r'"train_num_updates": "(\d+)"')  # the line at the end of an epoch


class Numbers(torch.utils.data.Dataset):
    """Data set of the numbers below `size`."""

    def __init__(self, size: int):
        self.size = size

    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return self.size


def of_epoch(batches: int, processes: int = 1, skip_remainder: bool = False) -> iterators.EpochBatchIterator:
    """Make the iterator of an epoch of `batches` batches, of one number each, on the first of some processes."""
    return iterators.EpochBatchIterator(
        Numbers(batches), list, [[n] for n in range(batches)], num_shards=processes, skip_remainder_batch=skip_remainder
    )


def saved(iterations: int, batches: int | None, processes: int = 1) -> dict:
    """Return the state of an iterator as a checkpoint holds it; batches: None for one that does not say."""
    place = {"epoch": 2, "version": 2, "shuffle": True, "iterations_in_epoch": iterations, "num_shards": processes}
    return place if batches is None else place | {"batches": batches}


PLACES = {  # checkpoint; batches and processes now, batches an update -> batches that a process has done
    "nothing changed": (saved(6, 10), of_epoch(10), 2, 6),
    "a tenth of the batches": (saved(75, 100), of_epoch(10), 1, 7),
    "ten times the batches": (saved(7, 10), of_epoch(100), 1, 70),
    "at the very end": (saved(138, 139), of_epoch(40), 1, 39),
    "two processes for one": (saved(6, 10), of_epoch(10, 2), 1, 3),
    "one process for two": (saved(3, 10, 2), of_epoch(10), 1, 6),
    "two processes with half as large batches": (saved(6, 10), of_epoch(20, 2), 1, 6),
    "larger updates": (saved(5, 10), of_epoch(10), 4, 4),
    "one update of the whole epoch": (saved(5, 8), of_epoch(8), 100, 0),
    "larger updates on two processes": (saved(9, 20), of_epoch(20, 2), 3, 3),
    "no remainder any more": (saved(9, 10), of_epoch(10, skip_remainder=True), 1, 8),
    "an old checkpoint": (saved(6, None), of_epoch(10), 1, 6),
    "an old checkpoint of longer epochs": (saved(60, None), of_epoch(10), 1, 0),
}


@pytest.mark.parametrize("case", PLACES)
def test_the_place_is_after_the_same_share_of_the_epoch(case):
    """The place is before the epoch's end, at the beginning of an update; fairseq then counts the updates left."""
    place, iterator, update_freq, expected = PLACES[case]
    skip = iterator.skip_remainder_batch
    now = datasets.converted_place(place, iterator, update_freq, skip)
    assert now["iterations_in_epoch"] == expected and now["epoch"] == 2 and now[datasets.BEGUN]
    iterator.load_state_dict(now)
    batches = iterator.next_epoch_itr()
    updates = list(iterators.GroupedIterator(batches, update_freq, skip_remainder_batch=skip))
    assert updates and iterator.end_of_epoch()


@pytest.mark.parametrize("place", [{"epoch": 3, "version": 2, "iterations_in_epoch": 0}, {"epoch": 1}])
def test_a_place_between_epochs_stays(place):
    assert datasets.converted_place(place, of_epoch(10), 3, False) == place


def test_an_iterator_without_a_number_of_batches_goes_on_by_processes():
    assert datasets.number_of_batches(SimpleNamespace()) is None
    now = datasets.converted_place(saved(6, 10), SimpleNamespace(num_shards=2), 1, False)
    assert now["iterations_in_epoch"] == 3


CHANGES = (  # flags of the resume
    "--max-tokens 3000", "--max-tokens 250", "--batch-size 4", "--required-batch-size-multiple 1", "--update-freq 7",
    "--update-freq 1000", "--skip-remainder-batch", "--train-subset test",
)  # fmt: skip


@pytest.fixture(scope="module")
def begun(data, tmp_path_factory):
    """Provide a folder with the checkpoint of 33 updates in the first epoch, which has about 48."""
    folder = tmp_path_factory.mktemp("begun")
    assert live(folder / "log", data, *FLAGS, "--max-update", "33", "--save-dir", folder) == 0
    return folder


@pytest.mark.parametrize("change", [CHANGES[0], *(pytest.param(one, marks=pytest.mark.smoke) for one in CHANGES[1:])])
def test_training_goes_on(change, begun, data, tmp_path):
    """Two epochs end, the first after the share of it that was left, and the second whole."""
    checkpoint = begun / "checkpoint_last.pt"
    place = torch.load(checkpoint, weights_only=True)["extra_state"]["train_iterator"]
    assert place["iterations_in_epoch"] == 33 < place["batches"]

    shutil.copy(checkpoint, tmp_path)
    status = live(tmp_path / "log", data, *FLAGS, "--max-epoch", "2", "--save-dir", tmp_path, *change.split())
    text = (tmp_path / "log").read_text()
    assert status == 0 and "Traceback" not in text, text[-3000:]

    whole = int(re.findall(r"grouped total_num_itrs = (\d+)", text)[-1])  # updates of an epoch
    first, second = (int(updates) for updates in TRAINED.findall(text))
    assert second - first == whole
    assert abs(first - 33 - (1 - 33 / place["batches"]) * whole) <= 1
    said = [line for line in text.split("\n") if "WARNING" in line and "epoch 1 " in line]
    assert len(said) == (change != "--skip-remainder-batch")
