"""Tests of --cuda-graphs in whole runs of fairseq-train, by graphs that a CPU records."""

from __future__ import annotations

import shutil

import pytest
import torch

from deepnet_fairseq.plugin.graphs import settings
from deepnet_fairseq.plugin.probe_record import read_record

from ..conftest import TRAIN_FLAGS
from ..support.diverging import TINY, train, updates, weights
from ..support.recorded_graph import RecordedDevice

FIVE_UPDATES_AN_EPOCH = (
    "--train-subset", "test", "--batch-size", "4", "--required-batch-size-multiple", "1", "--max-tokens", "10000",
)  # fmt: skip
SHAPES = 3
FLAGS = (*TINY, *FIVE_UPDATES_AN_EPOCH, "--cuda-graphs", str(SHAPES))
WATCHED = (*FLAGS, "--deepnet-probe", "gradient_norm", "--probe-interval", "4", "--stop-stuck", "100")
WITH_VALIDATION = tuple(flag for flag in TRAIN_FLAGS if flag != "--disable-validation")


@pytest.fixture(scope="module", autouse=True)
def trainers():
    """Provide the list of the trainers of this file's runs, which have graphs on a CPU."""
    made = []

    def device_of(trainer):
        made.append(trainer)
        return RecordedDevice()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "device_of", device_of)
        yield made


@pytest.fixture(scope="module")
def uninterrupted_run(data, tmp_path_factory, trainers):
    """Provide the folder and the GraphedStep of three epochs with probes, validation and --stop-stuck."""
    folder = tmp_path_factory.mktemp("whole")
    train(data, folder, *WATCHED, "--max-epoch", "3", common=WITH_VALIDATION)
    return folder, trainers[-1].graphs


def test_updates_that_probes_watch_are_computed_without_graphs(uninterrupted_run):
    folder, graphs = uninterrupted_run

    watched = read_record(folder / "probes.jsonl").updates()

    assert watched == [0, 4, 8, 12]
    assert graphs.served == 15 - len(watched)
    assert graphs.unserved == 0
    assert graphs.obstacle is None


def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(data, uninterrupted_run, tmp_path):
    train(data, tmp_path, *WATCHED, "--max-epoch", "2", common=WITH_VALIDATION)
    train(data, tmp_path, *WATCHED, "--max-epoch", "3", common=WITH_VALIDATION)

    resumed = weights(tmp_path / "checkpoint_last.pt")
    uninterrupted = weights(uninterrupted_run[0] / "checkpoint_last.pt")
    assert resumed.keys() == uninterrupted.keys()
    for name, weight in uninterrupted.items():
        assert torch.equal(resumed[name], weight), name


def test_an_epoch_with_other_data_goes_on_with_graphs(data, tmp_path, trainers):
    """Batches of the second shard are made in its epoch; shapes that none covers get some of their own."""
    second_shard = shutil.copytree(data, tmp_path / "second")
    for file in data.glob("valid.*"):
        shutil.copy(file, second_shard / file.name.replace("valid.", "test.", 1))

    flags = (*FLAGS, "--update-epoch-batch-itr", "True", "--max-epoch", "2")
    train(f"{data}:{second_shard}", tmp_path / "run", *flags)

    graphs = trainers[-1].graphs
    made = updates(tmp_path / "run")
    assert made > 5
    assert graphs.obstacle is None
    assert graphs.served >= made - 3
