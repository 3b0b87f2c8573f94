"""What the GPUs of each mode send to each other in an update, laid out as steps.

none            pytorch_ddp: gradients are summed in buckets of 25 MB as the last batch's backward pass fills them
os              the same, and after the optimiser's update everybody gets the weights of everybody's part
fully_sharded   each layer's weights are gathered before its forward and again before its backward pass, what
                stands around the layers once; gradients are reduced, in float32, and scattered; in every batch
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..setting import Setting
from ..tape import FLOAT32
from .collectives import all_gather, all_reduce, reduce_scatter
from .hardware import Network
from .model import Model, Pace
from .timeline import Spent, Step, play

BUCKET = 25 * 2**20  # bytes, fairseq's --bucket-cap-mb
NAMES = {"none": "data parallel", "os": "ZeRO, optimiser", "fully_sharded": "fully sharded"}


def update(model: Model, setting: Setting, pace: Pace) -> Spent:
    """Seconds of one update: all its batches, and the optimiser."""
    forward, backward, optimiser = LAYOUTS[setting.sharding](pace.hardware.network, setting)
    segments = model.segments(setting)
    asynchronous = pace.hardware.asynchronous

    def batch(last: bool) -> Iterator[Step]:
        yield from forward([pace.forward(setting, segment) for segment in segments], segments)
        steps = [pace.backward(setting, segment) for segment in reversed(segments)]
        yield from backward(steps, segments[::-1], last)

    before = play(batch(last=False), asynchronous) if setting.update_freq > 1 else Spent()
    shard = model.parameters.trainable // (1 if setting.sharding == "none" else setting.gpus)
    end = optimiser(pace.optimiser(setting, shard), model.parameters.weight_bytes)
    return before * (setting.update_freq - 1) + play([*batch(last=True), *end], asynchronous)


Layout = tuple[Callable, Callable, Callable]


def _replicated(network: Network, setting: Setting) -> Layout:
    def forward(steps: list[Step], segments: list) -> Iterator[Step]:
        yield from steps

    def backward(steps: list[Step], segments: list, last: bool) -> Iterator[Step]:
        waiting = 0
        for index, (step, segment) in enumerate(zip(steps, segments, strict=True)):
            waiting += segment.gradients
            full = waiting >= BUCKET or index == len(steps) - 1
            if last and full and waiting:
                step, waiting = replace(step, send=all_reduce(network, setting.gpus, waiting)), 0
            yield step

    def optimiser(step: Step, weights: int) -> Iterator[Step]:
        yield replace(step, waits=True)

    return forward, backward, optimiser


def _optimiser_sharded(network: Network, setting: Setting) -> Layout:
    forward, backward, _ = _replicated(network, setting)

    def optimiser(step: Step, weights: int) -> Iterator[Step]:
        yield replace(step, waits=True, send=all_gather(network, setting.gpus, weights))

    return forward, backward, optimiser


def _fully_sharded(network: Network, setting: Setting) -> Layout:
    n = setting.gpus

    def gathered(step: Step, segment) -> Step:
        return replace(step, gather=all_gather(network, n, segment.gradients)) if segment.gradients else step

    def forward(steps: list[Step], segments: list) -> Iterator[Step]:
        yield from (gathered(step, segment) for step, segment in zip(steps, segments, strict=True))

    def backward(steps: list[Step], segments: list, last: bool) -> Iterator[Step]:
        for step, segment in zip(steps, segments, strict=True):
            step = gathered(step, segment) if segment.name.endswith(" layers") else step
            size = segment.gradients * FLOAT32 // setting.precision.itemsize
            yield replace(step, send=reduce_scatter(network, n, size)) if size else step

    def optimiser(step: Step, weights: int) -> Iterator[Step]:
        yield replace(step, waits=True)

    return forward, backward, optimiser


LAYOUTS = {"none": _replicated, "os": _optimiser_sharded, "fully_sharded": _fully_sharded}
