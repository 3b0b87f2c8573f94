"""Tests of --cuda-graphs on several processes, by graphs that a CPU records: the model that DDP and ZeRO train.

With graphs the trainer itself averages the gradients of the processes, after the last batch of an update.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

from benchmarks.models import trainer_of
from deepnet_fairseq.plugin.graphs import data_parallel, settings
from deepnet_fairseq.plugin.graphs.step import GraphedStep

from ..conftest import TRAIN_FLAGS
from ..support import ranks
from ..support.diverging import TINY
from ..support.marks import smoke_but
from ..support.recorded_graph import RecordedDevice, UncapturableDevice

# 20 sentences in batches of 4: an epoch has five batches, so the last update has none for the second of two processes
UNEVEN = (
    *TRAIN_FLAGS, *TINY, "--train-subset", "test", "--batch-size", "4", "--required-batch-size-multiple", "1",
    "--max-tokens", "10000", "--optimizer", "deepnet_adam", "--dropout", "0", "--save-interval", "100",
)  # fmt: skip
ENOUGH_MEMORY = 2**40  # bytes
UPDATES = 9  # three epochs of three updates
ALL_SHAPES = "100"  # as many as there may be: no batch is padded
ZERO = ("--zero-sharding", "os")
FP16 = ("--fp16", "--fp16-init-scale", "16", "--dropout", "0.1")
ROUNDING = 2e-3  # bits a token, of losses that are logged with three decimals


def smoke(flags: tuple[str, ...]):
    """Return flags as a parameter of a smoke test."""
    return pytest.param(flags, marks=pytest.mark.smoke)


class SmallDevice(RecordedDevice):
    """Device whose memory does not suffice for the passes of a batch without a graph."""

    def warm_up(self, function):
        raise torch.OutOfMemoryError("CUDA out of memory")


class DyingDevice(RecordedDevice):
    """Device whose process is killed while it captures."""

    def graph(self):
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def recording_beside_plain_batches(folder: Path, number: int):
    """Record graphs, but let process 1 leave every other batch to fairseq, and log values whose kind depends on that.

    In the log of a plain pass the sample size is a tensor and a count a number; in that of a graph it is the reverse.
    """
    step = GraphedStep.step
    forward = LabelSmoothedCrossEntropyCriterion.forward
    calls = itertools.count()

    def step_or_leave(self, *args, **kwargs):
        if number == 1 and next(calls) % 2:
            return None
        return step(self, *args, **kwargs)

    def forward_with_more(self, model, sample, reduce=True):
        loss, _size, log = forward(self, model, sample, reduce)
        size = sample["target"].ne(self.padding_idx).sum()
        return loss, size, log | {"a_count": sample["ntokens"] * 2, "sample_size": size}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphedStep, "step", step_or_leave)
        patch.setattr(LabelSmoothedCrossEntropyCriterion, "forward", forward_with_more)
        with recording(folder, RecordedDevice, number):
            yield


class Served(NamedTuple):
    """What graphs did in a process."""

    served: int  # batches by a graph
    unserved: int
    captured: int  # graphs


@contextmanager
def recording(folder: Path, device_of_second, number: int):
    """Let process `number` record its graphs on a CPU, and write what they did into a file of the folder.

    device_of_second: makes the device of process 1
    """
    made = []

    def device_of(trainer):
        made.append(trainer)
        return device_of_second() if number == 1 else RecordedDevice(times=SECONDS_BY_A_FAST_GRAPH)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "device_of", device_of)
        yield
    graphs = [trainer.graphs for trainer in made if trainer.graphs is not None]
    if graphs:
        numbers = Served(graphs[-1].served, graphs[-1].unserved, len(graphs[-1].captured))
        (folder / f"served{number}").write_text(json.dumps(numbers))


class Trained(NamedTuple):
    losses: list[float]  # of each update
    weights: dict[str, torch.Tensor]
    served: list[Served]  # of each process; [] without graphs


def train(folder: Path, data: Path, *flags, graphs: str = "0", device_of_second=RecordedDevice, around=None) -> Trained:
    """Train on two processes until there are UPDATES updates.

    graphs: --cuda-graphs; device_of_second: makes the device on which process 1 captures its graphs; around: as for
    ranks.train, in the place of `recording`
    """
    folder.mkdir(exist_ok=True)
    words = (data, *UNEVEN, *flags, "--cuda-graphs", graphs, "--max-update", UPDATES, "--save-dir", folder)
    around = around or partial(recording, folder, device_of_second)
    rows = ranks.train(2, folder / "log", *words, around=around)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(folder / "checkpoint_last.pt"))
    served = [Served(*json.loads(file.read_text())) for file in sorted(folder.glob("served*"))]
    return Trained([float(row["loss"]) for row in rows], state["model"], served)


@pytest.fixture(scope="module")
def by_ddp(data, tmp_path_factory) -> Trained:
    """Provide the training of two processes without graphs."""
    return train(tmp_path_factory.mktemp("ddp"), data)


def assert_same_bits(found: Trained, expected: Trained) -> None:
    assert len(found.losses) == UPDATES
    assert found.losses == expected.losses
    assert found.weights.keys() == expected.weights.keys()
    for name, weight in expected.weights.items():
        assert torch.equal(found.weights[name], weight), name


@pytest.mark.parametrize(
    "flags",
    [
        FP16,
        smoke(("--bf16", *ZERO, "--update-freq", "4")),
        smoke(("--ddp-backend", "legacy_ddp", "--optimizer", "adam")),
        smoke(("--amp", "--update-freq", "4")),
        smoke(ZERO),
        smoke(("--memory-efficient-fp16", "--fp16-init-scale", "16", "--optimizer", "adam")),
        smoke((*FP16, *ZERO, "--method", "r_fixup")),  # r_fixup has parameters in float32, too: two buffers
    ],
    ids=" ".join,
)
def test_graphs_on_two_processes_train_the_bits_of_ddp(flags, data, tmp_path):
    """No graph pads a batch. A process that has no batch left computes a dummy batch."""
    plain = train(tmp_path / "plain", data, *flags)

    by_graphs = train(tmp_path / "graphs", data, *flags, graphs=ALL_SHAPES)

    assert plain.served == []
    assert len(by_graphs.served) == 2
    for of_process in by_graphs.served:
        assert of_process.served >= UPDATES
        assert of_process.unserved == 0
    assert_same_bits(by_graphs, plain)


def test_padded_batches_on_two_processes_change_losses_by_rounding_alone(data, by_ddp, tmp_path):
    by_graphs = train(tmp_path, data, graphs="2")

    assert [of_process.captured for of_process in by_graphs.served] == [2, 2]
    assert by_graphs.losses == pytest.approx(by_ddp.losses, abs=ROUNDING)


@pytest.mark.smoke
def test_updates_that_probes_watch_are_averaged_too(data, tmp_path):
    """Probes read every third update's gradients in passes without graphs."""
    probes = ("--deepnet-probe", "gradient_norm", "--probe-interval", "3")
    plain = train(tmp_path / "plain", data, *probes)

    by_graphs = train(tmp_path / "graphs", data, *probes, graphs=ALL_SHAPES)

    assert [of_process.served for of_process in by_graphs.served] == [6, 6]
    assert_same_bits(by_graphs, plain)
    records = [(tmp_path / folder / "probes.jsonl").read_text() for folder in ("plain", "graphs")]
    assert records[0] == records[1]


def test_processes_sum_logs_of_plain_passes_and_of_graphs(data, by_ddp, tmp_path):
    both = train(tmp_path, data, graphs=ALL_SHAPES, around=partial(recording_beside_plain_batches, tmp_path))

    assert both.served[0].served == UPDATES
    assert 0 < both.served[1].served < UPDATES
    assert both.losses == by_ddp.losses


def test_model_and_loss_are_moved_to_the_device(monkeypatch):
    """fairseq leaves the move to its wrapper for several processes."""
    trainer = trainer_of([*TINY, "--cpu", "--max-tokens", "100", "--optimizer", "adam"])
    trainer.criterion.register_parameter("factor", torch.nn.Parameter(torch.ones(1)))
    trainer.use_graphs(GraphedStep(limit=1, pad_index=1, device=RecordedDevice()))
    monkeypatch.setattr(type(trainer), "use_distributed_wrapper", True)
    monkeypatch.setattr(data_parallel, "wrap", lambda module, _graphs, _group: module)
    trainer.device = torch.device("meta")

    parameters = [*trainer.model.parameters(), *trainer.criterion.parameters()]

    assert {parameter.device.type for parameter in parameters} == {"meta"}


# One of two processes cannot use graphs

SECONDS_BY_A_FAST_GRAPH = (1.0, 1.0, 0.5, 0.5)  # of two plain passes and two replays
SECONDS_BY_A_SLOW_GRAPH = (1.0, 1.0, 1.5, 1.5)


@pytest.mark.parametrize(
    "graphs, device_of_second",
    [
        (ALL_SHAPES, partial(RecordedDevice, free=(0,))),  # no memory for a graph
        pytest.param(ALL_SHAPES, SmallDevice, marks=pytest.mark.smoke),
        pytest.param("auto", partial(RecordedDevice, times=SECONDS_BY_A_SLOW_GRAPH), marks=pytest.mark.smoke),
    ],
    ids=["no memory for a graph", "no memory for a batch", "graphs are slower"],
)
def test_an_obstacle_on_one_process_lets_both_train_by_ddp(graphs, device_of_second, data, by_ddp, tmp_path):
    both = train(tmp_path, data, graphs=graphs, device_of_second=device_of_second)

    assert both.served == []
    assert_same_bits(both, by_ddp)


@pytest.mark.smoke
def test_both_processes_have_the_graphs_for_which_both_have_memory(data, by_ddp, tmp_path):
    # memory is asked for twice before the first graph is captured and once after each: the third graph uses it up
    device_of_second = partial(RecordedDevice, free=(*[ENOUGH_MEMORY] * 4, 0))

    both = train(tmp_path, data, graphs=ALL_SHAPES, device_of_second=device_of_second)

    assert [of_process.captured for of_process in both.served] == [3, 3]
    assert both.losses == pytest.approx(by_ddp.losses, abs=ROUNDING)


@pytest.mark.parametrize("graphs", smoke_but((ALL_SHAPES,), (ALL_SHAPES, "auto")))
def test_a_failed_capture_on_one_process_ends_both(graphs, data, tmp_path):
    """Each process ends with the line of the one that failed, before anything is saved."""
    log = tmp_path / "log"
    around = partial(recording, tmp_path, partial(UncapturableDevice, times=SECONDS_BY_A_FAST_GRAPH))
    words = (data, *UNEVEN, "--cuda-graphs", graphs, "--max-update", UPDATES, "--save-dir", tmp_path / "saved")

    rows = ranks.train(2, log, *words, check=False, around=around, timeout=100)

    errors = [line for line in log.read_text().splitlines() if line.startswith("fairseq-train: error: ")]
    assert len(errors) == 2
    assert errors[0] == errors[1]
    assert "--cuda-graphs" in errors[0]
    assert rows == []
    assert not list(tmp_path.glob("saved/*.pt"))


@pytest.mark.smoke
def test_a_process_killed_at_its_capture_ends_the_other(data, tmp_path):
    log = tmp_path / "log"
    around = partial(recording, tmp_path, DyingDevice)
    words = (data, *UNEVEN, "--cuda-graphs", ALL_SHAPES, "--max-update", UPDATES, "--save-dir", tmp_path)

    ranks.train(2, log, *words, check=False, around=around, timeout=100)

    errors = [line for line in log.read_text().splitlines() if line.startswith("fairseq-train: error: ")]
    assert len(errors) == 1
    assert "process 0 of 2" in errors[0]
