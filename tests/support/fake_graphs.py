"""Updates by graphs on a fake GPU, in the process of benchmarks.fake_gpu, which counts its launches and waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.fake_gpu import step
from benchmarks.fake_gpu.device import Record
from benchmarks.models import trainer_of
from deepnet_fairseq.plugin.graphs.capture import Memory
from deepnet_fairseq.plugin.graphs.static_batch import shape_of
from deepnet_fairseq.plugin.graphs.step import GraphedStep

IN_GRAPH = "graph"  # the part of the update under which the launches of a replay are counted
UPDATES = 3  # the last one is counted: graphs are captured in the first


class CountedGraph:
    """A graph that keeps the function itself; a replay calls it, and counts its launches as those of a graph."""

    def capture(self, function: Callable[[], None]) -> None:
        self.function = function

    def replay(self) -> None:
        with step.DEVICE.during(IN_GRAPH):
            self.function()


class FakeDevice:
    """Device of graphs with memory without end; see deepnet_fairseq.plugin.graphs.capture.Device."""

    def graph(self) -> CountedGraph:
        return CountedGraph()

    def warm_up(self, function: Callable[[], Any]) -> Any:
        return function()

    def faster_kernels(self, most_rows: int) -> AbstractContextManager:
        return nullcontext()

    def memory(self) -> Memory:
        return Memory(free=2**40, total=2**40, reserved=0)


class GraphedUpdate(NamedTuple):
    """What an update asks of the device.

    launches_inside, launches_outside: kernels launched by replays of graphs, and by all else
    waits: "part kind file:function" -> count of host-device synchronisations
    obstacle: why the training uses no graphs; None if it does
    """

    launches_inside: int
    launches_outside: int
    waits: Counter
    obstacle: str | None


def update(flags: Sequence[str], shape: step.Shape) -> GraphedUpdate:
    """Make three updates by graphs, on batches of one shape; return the counts of the third.

    Copies to the device of anything but the batch count as waits.

    flags: of fairseq-train; shape: of the batch
    """
    step.begin()
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, step.DEVICE:
        trainer = trainer_of(["--max-tokens=4096", *flags])
        graphs = GraphedStep(limit=2, pad_index=1, device=FakeDevice())
        trainer.use_graphs(graphs)
        trainer.begin_epoch(1)

    # The batch holds numbers and lies on the host, outside of the fake device. Its shape is the one planned for graphs.
    batches = [step.batch(trainer.task, shape)]
    planned = numpy.array([shape_of(batches[0])])
    graphs.pending_shapes = planned
    graphs.epoch_shapes = planned

    with fake, step.DEVICE:
        for _ in range(UPDATES):
            step.DEVICE.record = Record()
            trainer.train_step(batches, raise_oom=True)
        record = step.DEVICE.record
        step.DEVICE.record = Record()

    waits = Counter(record.waits)
    for place, count in record.copies.items():
        if "_move_to_cuda" not in place:  # fairseq's function that copies the batch
            waits[place] += count
    inside = record.launches(IN_GRAPH)
    return GraphedUpdate(inside, record.launches() - inside, waits, graphs.obstacle)
