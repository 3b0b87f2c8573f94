"""Tests of --cuda-graphs in whole runs of fairseq-train, by graphs that a CPU records."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from deepnet_fairseq.plugin.graphs import settings

from ..conftest import TRAIN_FLAGS
from ..support.diverging import TINY, train, updates, weights
from ..support.recorded_graph import RecordedDevice

TWENTY = ("--train-subset", "test", "--batch-size", "4", "--required-batch-size-multiple", "1", "--max-tokens", "10000")
FLAGS = (*TINY, *TWENTY)  # five updates an epoch
COMMON = tuple(flag for flag in TRAIN_FLAGS if flag != "--disable-validation")


@pytest.fixture
def trainers(monkeypatch):
    """Provide the list of the trainers of this test's runs, which have graphs on a CPU."""
    made = []

    def device_of(trainer):
        made.append(trainer)
        return RecordedDevice()

    monkeypatch.setattr(settings, "device_of", device_of)
    return made


def test_probes_validation_and_a_resume(data, tmp_path, trainers):
    """Updates that probes watch are computed without graphs; a resumed run ends with the bits of an uninterrupted."""
    flags = (*FLAGS, "--cuda-graphs", "3", "--deepnet-probe", "gradient_norm", "--probe-interval", "4", "--stop-stuck",
             "100")  # fmt: skip
    train(data, tmp_path / "whole", *flags, "--max-epoch", "3", common=COMMON)
    graphs = trainers[-1].graphs
    assert (graphs.served, graphs.unserved) == (11, 0) and graphs.obstacle is None  # 4 of 15 updates are watched

    train(data, tmp_path / "parts", *flags, "--max-epoch", "2", common=COMMON)
    train(data, tmp_path / "parts", *flags, "--max-epoch", "3", common=COMMON)
    ours, whole = (weights(tmp_path / name / "checkpoint_last.pt") for name in ("parts", "whole"))
    assert ours.keys() == whole.keys() and all(torch.equal(ours[name], whole[name]) for name in ours)
    rows = [json.loads(line) for line in (tmp_path / "whole" / "probes.jsonl").read_text().splitlines()]
    assert [row["update"] for row in rows if "update" in row] == [0, 4, 8, 12]


def test_two_shards_with_batches_made_in_each_epoch(data, tmp_path, trainers):
    """The second epoch has other data, and goes on with graphs; shapes that none covers get some of their own."""
    second = shutil.copytree(data, tmp_path / "second")
    for file in data.glob("valid.*"):
        shutil.copy(file, second / file.name.replace("valid.", "test.", 1))
    flags = (*FLAGS, "--cuda-graphs", "3", "--update-epoch-batch-itr", "True")
    train(f"{data}:{second}", tmp_path / "run", *flags, "--max-epoch", "2")
    graphs = trainers[-1].graphs
    made = updates(tmp_path / "run")
    assert made > 5 and graphs.obstacle is None
    assert graphs.served >= made - 3
