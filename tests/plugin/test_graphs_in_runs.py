"""Tests of --cuda-graphs in whole runs of fairseq-train, by graphs that a CPU records."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from deepnet_fairseq.plugin.graphs import settings
from deepnet_fairseq.plugin.graphs.step import GraphedStep
from deepnet_fairseq.plugin.probe_record import read_record

from ..conftest import TRAIN_FLAGS
from ..support.diverging import TINY, train, updates_of_last_checkpoint, weights
from ..support.recorded_graph import RecordedDevice

# 20 sentences in batches of 4, which no limit of tokens divides further
FIVE_UPDATES_AN_EPOCH = (
    "--train-subset", "test", "--batch-size", "4", "--required-batch-size-multiple", "1", "--max-tokens", "10000",
)  # fmt: skip
SHAPES = 3  # shapes of batches that get a graph
FLAGS = (*TINY, *FIVE_UPDATES_AN_EPOCH, "--cuda-graphs", str(SHAPES))
# probes that read the gradients of every fourth update, and an end after 100 updates without progress
WATCHED = (*FLAGS, "--deepnet-probe", "gradient_norm", "--probe-interval", "4", "--stop-stuck", "100")
WITH_VALIDATION = tuple(flag for flag in TRAIN_FLAGS if flag != "--disable-validation")


@pytest.fixture(scope="module", autouse=True)
def trainers():
    """Let the runs of this file record graphs on a CPU; provide the list of their trainers, the latest last."""
    made = []

    def device_of(trainer):
        made.append(trainer)
        return RecordedDevice()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "device_of", device_of)
        yield made


class Run(NamedTuple):
    folder: Path
    graphs: GraphedStep


@pytest.fixture(scope="module")
def uninterrupted_run(data, tmp_path_factory, trainers) -> Run:
    """Provide a run of three epochs, 15 updates, with probes, validation and --stop-stuck."""
    folder = tmp_path_factory.mktemp("whole")
    train(data, folder, *WATCHED, "--max-epoch", "3", common=WITH_VALIDATION)
    return Run(folder, trainers[-1].graphs)


def test_updates_that_probes_watch_are_computed_without_graphs(uninterrupted_run):
    watched = read_record(uninterrupted_run.folder / "probes.jsonl").updates()

    assert watched == [0, 4, 8, 12]
    assert uninterrupted_run.graphs.served == 15 - len(watched)
    assert uninterrupted_run.graphs.unserved == 0  # batches that came to the graphs, and were left to fairseq
    assert uninterrupted_run.graphs.obstacle is None


def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(data, uninterrupted_run, tmp_path):
    train(data, tmp_path, *WATCHED, "--max-epoch", "2", common=WITH_VALIDATION)
    train(data, tmp_path, *WATCHED, "--max-epoch", "3", common=WITH_VALIDATION)

    resumed = weights(tmp_path / "checkpoint_last.pt")
    uninterrupted = weights(uninterrupted_run.folder / "checkpoint_last.pt")
    assert resumed.keys() == uninterrupted.keys()
    for name, weight in uninterrupted.items():
        assert torch.equal(resumed[name], weight), name


def test_an_epoch_with_other_data_gets_graphs_too(data, tmp_path, trainers):
    """The second epoch trains on another shard: the batches that no graph covers get one more shape for them all.

    A later epoch may add a quarter of --cuda-graphs, and at least one.
    """
    second_shard = shutil.copytree(data, tmp_path / "second")
    for file in data.glob("valid.*"):  # 20 other sentences in the place of those that the first epoch trains on
        shutil.copy(file, second_shard / file.name.replace("valid.", "test.", 1))
    flags = (*FLAGS, "--update-epoch-batch-itr", "True", "--max-epoch", "2")

    train(f"{data}:{second_shard}", tmp_path / "run", *flags)

    graphs = trainers[-1].graphs
    assert updates_of_last_checkpoint(tmp_path / "run") == 10
    assert graphs.obstacle is None
    assert len(graphs.captured) == SHAPES + 1
    assert graphs.served == 10
