"""`deepnet bench` on a GPU, as far as it goes without one: what is counted in a profile, and the predictions' table."""

import re
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from deepnet_fairseq.tools.bench import kernels
from deepnet_fairseq.tools.bench.benchmarks import Benchmark, KernelsBenchmark, TrainBenchmark
from deepnet_fairseq.tools.bench.contender import PARTS, SPAN
from deepnet_fairseq.tools.bench.settings import Settings, Shape, candidates

from .support.helpers import ROOT

SHAPE = Shape(1, 1, "tiny")


def event(name, start, end, device=DeviceType.CPU):
    return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start, end=end), device_type=device)


def test_launches_are_counted_in_the_part_that_makes_them():
    """A step from 10 to 100 us: those outside it, before and in the profiler's own wait, are not counted."""
    spans = {"step": (10, 100), "forward": (10, 30), "backward": (31, 60), "clip": (61, 70), "optimizer": (71, 90)}
    host = [event(SPAN + name, *times) for name, times in spans.items()]
    calls = {"cudaLaunchKernel": (5, 12, 40, 50), "cudaLaunchKernelExC": (13, 62), "cudaMemsetAsync": (80,)}
    calls |= {"cudaStreamSynchronize": (65, 95), "cudaDeviceSynchronize": (101,), "cudaMemcpyAsync": (66,)}
    host += [event(name, time, time + 1) for name, times in calls.items() for time in times]
    kinds = {"void at::native::mm": (12, 20), "Memcpy DtoH (Device -> Pageable)": (70, 71), SPAN + "forward": (12, 30)}
    device = [event(name, *times, DeviceType.CUDA) for name, times in kinds.items()]
    found = kernels.counted(host + device)
    expected = {"forward": 2, "backward": 2, "clip": 1, "optimizer": 1, "launches": 6, "synchronisations": 2}
    expected |= {"copies to the host": 1, "copies to the device": 0, "busy": pytest.approx(9e-6)}
    assert found == expected


def test_a_cpu_launches_nothing():
    """The measure runs; the parts are in the profile."""
    settings = Settings(max_tokens=200, vocabulary=120, repeats=1, warmup=1)
    benchmark = KernelsBenchmark(SHAPE, settings)
    (candidate,) = candidates("ours")
    (cell,) = benchmark.measure_candidates([candidate])
    assert cell.state == "measured" and {row[0] for row in cell.values.values()} == {0}
    assert cell.values.keys() == {*PARTS, "launches", "synchronisations", *kernels.COPIES, "busy"}


def test_a_gpu_has_seen_each_batch_before(monkeypatch):
    """It chooses kernels by shape; a CPU does not, and warms up with other batches."""
    for device, again in (("cpu", set()), ("cuda", set(range(5)))):
        settings = Settings(max_tokens=200, vocabulary=120, repeats=5, warmup=2)
        monkeypatch.setattr(Settings, "torch_device", property(lambda _, device=device: torch.device(device)))
        benchmark = TrainBenchmark(SHAPE, settings)
        made = SimpleNamespace(batches=lambda count: list(range(count)), watch_parts=lambda: None)
        monkeypatch.setattr(Benchmark, "enter", lambda *_, made=made: made)
        benchmark.enter(None)
        warm, counted = ({benchmark._batch(n) for n in numbers} for numbers in (range(-benchmark.warmup, 0), range(5)))
        assert warm & counted == again and len(counted) == 5


def test_predictions_are_of_what_gpu_check_measures():
    words = re.search(r"deepnet bench --device cuda(.*?)--out", (ROOT / "scripts/gpu_check.sh").read_text(), re.S)[1]
    flags = dict(re.findall(r"--(depths|widths|precision|max-tokens|candidates) (\S+)", words))
    assert (flags["precision"], int(flags["max-tokens"]), flags["widths"]) == (
        *list(kernels.CONDITIONS.values())[:2],
        "base",
    )
    names = [*flags["candidates"].split(","), "adam"]
    assert set(kernels.PREDICTED) == set(product(names, flags["depths"].split(",")))
    assert "--variant adam=" in words


def test_predictions_beside_measures(monkeypatch):
    monkeypatch.setitem(kernels.PREDICTED, ("ours", "3-3"), kernels.Prediction(100, 200, 10, 20, 4, 0.016))
    summary = {"forward": {"median": 110}, "synchronisations": {"median": 5}, "busy": {"median": 0.024}}
    cell = {"measure": "kernels", "candidate": "ours", "depth": "3-3", "width": "base", "summary": summary}
    measurements = {"settings": dict(kernels.CONDITIONS), "cells": [cell, cell | {"width": "tiny"}]}
    rows = kernels.beside_predictions(measurements).splitlines()[4:]
    assert rows == [
        "| 3-3 | ours | forward | 100 | 110 | 1.10 |",
        "| 3-3 | ours | synchronisations | 4 | 5 | 1.25 |",
        "| 3-3 | ours | busy | 16.0 ms | 24.0 ms | 1.50 |",
    ]
    measurements["settings"]["precision"] = "bf16"
    assert kernels.beside_predictions(measurements) == ""
