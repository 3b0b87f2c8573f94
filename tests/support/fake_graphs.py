"""Updates by graphs on benchmarks.fake_gpu, in its process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.fake_gpu import step
from benchmarks.fake_gpu.device import Record
from benchmarks.models import trainer_of
from deepnet_fairseq.plugin.graphs.capture import Memory
from deepnet_fairseq.plugin.graphs.static_batch import shape_of
from deepnet_fairseq.plugin.graphs.step import GraphedStep

INSIDE = "graph"  # the part of the update under which a graph's launches are counted


class Counted:
    """A graph that calls the function, and counts what it asks of the device apart."""

    def capture(self, function: Callable[[], None]) -> None:
        self.function = function

    def replay(self) -> None:
        with step.DEVICE.during(INSIDE):
            self.function()


class FakeDevice:
    """Device without memory or time; see deepnet_fairseq.plugin.graphs.capture.Device."""

    def graph(self) -> Counted:
        return Counted()

    def warm_up(self, function: Callable[[], Any]) -> Any:
        return function()

    def faster_kernels(self, most_rows: int) -> AbstractContextManager:
        return nullcontext()

    def memory(self) -> Memory:
        return Memory(free=2**40, total=2**40, reserved=0)


def update(flags: Sequence[str], shape: step.Shape) -> tuple[int, int, Counter, str | None]:
    """Return launches of the third update inside and outside of graphs, its waits, and the obstacle, if there is one.

    Copies of anything but the batch to the device count as waits.
    """
    step.begin()
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, step.DEVICE:
        trainer = trainer_of(["--max-tokens=4096", *flags])
        graphs = trainer.graphs = trainer.task.graphs = GraphedStep(2, 1, FakeDevice())
        trainer.begin_epoch(1)
    batches = [step.batch(trainer.task, shape)]
    graphs.pending_shapes = graphs.epoch_shapes = numpy.array([shape_of(batches[0])])
    with fake, step.DEVICE:
        for _ in range(3):
            step.DEVICE.record = Record()
            trainer.train_step(batches, raise_oom=True)
        record, step.DEVICE.record = step.DEVICE.record, Record()
    waits = record.waits + Counter({key: n for key, n in record.copies.items() if "_move_to_cuda" not in key})
    return record.launches(INSIDE), record.launches() - record.launches(INSIDE), waits, graphs.obstacle
