"""Part 1: trainings by CUDA graphs against plain ones of every method, times beside stock fairseq, two at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.plugin.graphs.capture import CudaDevice
from deepnet_fairseq.plugin.graphs.step import GraphedStep

from . import figure6
from .records import rows
from .trainings import Training
from .work import PYTHON, PartFailed, Work, last_line

UPDATES = 20
LAYERS = 6
TIMES = {  # name -> flags of `python -m benchmarks graphs`; the times that the README shows
    "18L-18L": "--depth 18-18 --candidates stock,plain,graphs --rounds 3 --batches 5",
    "100L-100L": "--depth 100-100 --candidates stock,plain,graphs --rounds 2 --batches 4",
    "500L-500L, width 64": "--depth 500-500 --width tiny --candidates graphs --rounds 2 --batches 2 --updates 4",
}
ALONE, TWO = "one training alone", "two trainings side by side"


def equal(work: Work) -> Iterator[dict]:
    """Train each method at 6L-6L plainly, plainly again, and by graphs, in fp16 with dropout.

    Yields the largest relative difference of their losses in 20 updates, and how many batches graphs served. The second
    plain training shows how far two trainings differ on this device with nothing changed.
    """
    from deepnet_fairseq import register

    register()
    methods = ["deepnorm", "pre_ln"] if work.miniature else sorted(METHODS)
    for number, method in enumerate(methods):
        plain, _ = losses(work, method, graphs=False)
        again, _ = losses(work, method, graphs=False)
        # a CPU has no graphs: the miniature compares plain trainings alone
        captured, step = losses(work, method, graphs=not work.miniature)
        row: dict[str, Any] = {
            "what": "equal",
            "method": method,
            "plain_again": difference(plain, again),
            "graphs": difference(plain, captured),
        }
        if step is not None:
            row |= {"served": step.served, "left": step.unserved, "obstacle": step.obstacle}
        yield row
        work.share((number + 1) / len(methods))


def losses(work: Work, method: str, graphs: bool) -> tuple[list[float], GraphedStep | None]:
    """Train a narrow model; return the losses of its updates, NaN where fp16 overflowed, and its step by graphs.

    graphs: whether CUDA graphs make the updates; without them the step is None.
    """
    from benchmarks.graphs import full_batches, unique_shapes
    from benchmarks.models import trainer_of, update

    place = ["--cpu"] if work.miniature else ["--fp16", "--fp16-init-scale=4"]
    layers = 2 if work.miniature else LAYERS
    trainer = trainer_of([
        "--arch=deepnet_transformer_tiny", f"--method={method}", *METHODS[method].train_flags,
        f"--encoder-layers={layers}", f"--decoder-layers={layers}", "--optimizer=deepnet_adam", "--lr=1e-3",
        "--warmup-updates=10", "--max-tokens=1000", "--benchmark-vocabulary=1000", *place,
    ])  # fmt: skip
    batches = full_batches(trainer, 1000, number=4)
    step = None
    if graphs:
        step = GraphedStep(len(batches), trainer.task.target_dictionary.pad(), CudaDevice())
        step.pending_shapes = step.epoch_shapes = unique_shapes(batches)
        trainer.graphs = trainer.task.graphs = step
    found = []
    for number in range(UPDATES):
        log = update(trainer, batches[number % len(batches)])
        found.append(math.nan if log is None else float(log["loss"]))
    return found, step


def difference(one: list[float], other: list[float]) -> float | None:
    """Return the largest relative difference of two trainings' losses; None where one of them overflowed alone."""
    largest = 0.0
    for left, right in zip(one, other, strict=True):
        if math.isnan(left) != math.isnan(right):
            return None
        if not math.isnan(left):
            largest = max(largest, abs(left - right) / abs(left))
    return largest


def times(work: Work) -> Iterator[dict]:
    """Time an update of several depths by graphs, plainly and in stock fairseq; yields a row for each."""
    if work.miniature:
        yield {"what": "times", "note": "not in miniature: python -m benchmarks graphs needs a GPU"}
        return
    for number, (name, flags) in enumerate(TIMES.items()):
        out = work.folder / f"times_{number}.txt"
        work.run([PYTHON, "-m", "benchmarks", "graphs", *flags.split()], f"times_{number}", out=out)
        for line in out.read_text().splitlines():
            if line.startswith("{"):
                yield {"what": "times", "name": name} | json.loads(line)
        work.share((number + 1) / len(TIMES))


def two_at_a_time(work: Work) -> Iterator[dict]:
    """Train DeepNorm 10L-10L alone, then twice side by side; yields updates a second of both, over all trainings."""
    updates, interval = (30, 5) if work.miniature else (600, 50)
    flags = [*figure6.flags(work, "deepnorm", 10), "--no-save", "--disable-validation", f"--log-interval={interval}"]
    data = work.text / "mix"
    alone = Training(work, data, flags, updates, "alone")
    two = [Training(work, data, flags, updates, name) for name in ("first", "second")]

    yield {"what": ALONE, "updates_a_second": per_second([alone.run(share=0.4)])}

    processes = [training.start() for training in two]
    results = []
    for training, process in zip(two, processes, strict=True):
        status = work.wait(process)
        if status != 0:
            raise PartFailed(f"{training.name} ended with status {status}: {last_line(training.log)}")
        results.append(training.result(status))
    yield {"what": TWO, "updates_a_second": per_second(results)}


def per_second(trainings: list[dict]) -> float:
    """Return the updates a second of several trainings together. trainings: what Training.result returns of each."""
    updates_a_second = sum(1 / training["seconds_an_update"] for training in trainings)
    return round(updates_a_second, 2)


def gain_of_two(records: list[dict]) -> float:
    """Return by which factor two trainings side by side make more updates than one after the other; 1 if unmeasured."""
    alone = rows(records, "two_at_a_time", ALONE)
    two = rows(records, "two_at_a_time", TWO)
    if not alone or not two:
        return 1.0
    return two[-1]["updates_a_second"] / alone[-1]["updates_a_second"]
