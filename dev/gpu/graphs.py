"""Parts 1 and 4: trainings by CUDA graphs against plain ones, times beside stock fairseq; two trainings at a time.

A plain training computes its updates without CUDA graphs. The functions that take a Work are parts of the list: they
yield rows, dictionaries of what they measured, for the part's record. The Work has the part's folder and time, and says
whether it is a miniature, with a tiny model on a CPU.
"""

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

UPDATES = 20  # of each training of `equal`
LAYERS = 6  # of its encoder and of its decoder
TIMES = {  # name -> flags of `python -m benchmarks graphs`; the times that the README shows
    "18L-18L": "--depth 18-18 --candidates stock,plain,graphs --rounds 3 --batches 5 --kernels 15",
    "100L-100L": "--depth 100-100 --candidates stock,plain,graphs --rounds 2 --batches 4 --kernels 15",
    "500L-500L, width 64": "--depth 500-500 --width tiny --candidates graphs --rounds 2 --batches 2 --updates 4",
}
ALONE, TWO = "one training alone", "two trainings side by side"  # "what" of the rows of two_at_a_time


def equal(work: Work) -> Iterator[dict]:
    """Train each method at 6L-6L plainly, plainly again, and by graphs, in fp16 with dropout; yield a row a method.

    A row has "plain_again" and "graphs": the largest relative difference of the second and of the third training's
    losses from the first's in 20 updates, as `difference` returns it. The second training shows how far two differ on
    this device with nothing changed. The row also has the batches "served" by graphs, those "left" to fairseq, and the
    "obstacle", the reason why graphs were given up, or None. The miniature has two methods at 2L-2L, and no graphs.
    """
    from deepnet_fairseq import register

    register()
    methods = ["deepnorm", "pre_ln"] if work.miniature else sorted(METHODS)
    for number, method in enumerate(methods):
        plain, _no_step = losses(work, method, graphs=False)
        again, _no_step = losses(work, method, graphs=False)
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
    """Train a narrow model on four batches again and again; return (losses, step).

    losses: of its updates, NaN where fp16 overflowed; step: what computed the updates by CUDA graphs, None without.
    work: says whether it is a miniature; method: a name of METHODS; graphs: whether to train by CUDA graphs.
    """
    from benchmarks.graphs import full_batches, unique_shapes
    from benchmarks.models import trainer_of, update

    place = ["--cpu"] if work.miniature else ["--fp16", "--fp16-init-scale=4"]  # so low that hardly any batch overflows
    layers = 2 if work.miniature else LAYERS
    trainer = trainer_of([
        "--arch=deepnet_transformer_tiny", f"--method={method}", *METHODS[method].train_flags,
        f"--encoder-layers={layers}", f"--decoder-layers={layers}", "--optimizer=deepnet_adam", "--lr=1e-3",
        "--warmup-updates=10", "--max-tokens=1000", "--benchmark-vocabulary=1000", *place,
    ])  # fmt: skip
    batches = full_batches(trainer, 1000, number=4)
    step = None
    if graphs:  # set here, for these batches alone, as GraphedStep.plan sets it for those of an epoch
        step = GraphedStep(len(batches), trainer.task.target_dictionary.pad(), CudaDevice())
        step.pending_shapes = step.epoch_shapes = unique_shapes(batches)
        trainer.use_graphs(step)
    found = []
    for number in range(UPDATES):
        log = update(trainer, batches[number % len(batches)])
        found.append(math.nan if log is None else float(log["loss"]))
    return found, step


def difference(one: list[float], other: list[float]) -> float | None:
    """Return the largest relative difference of two trainings' losses, update by update.

    None if in some update one of them overflowed (NaN) and the other did not: then they are not equal at all.
    """
    largest = 0.0
    for left, right in zip(one, other, strict=True):
        if math.isnan(left) != math.isnan(right):
            return None
        if not math.isnan(left):
            largest = max(largest, abs(left - right) / abs(left))
    return largest


def times(work: Work) -> Iterator[dict]:
    """Time an update of several depths by graphs, plainly and in stock fairseq, where TIMES names these candidates.

    A row has the entries that `python -m benchmarks graphs` prints of a candidate, and the "name" of the case, a key of
    TIMES. With --kernels another row of it has the milliseconds in each of an update's longest kernels.
    """
    if work.miniature:
        yield {"what": "times", "note": "not in miniature: python -m benchmarks graphs needs a GPU"}
        return
    for number, (name, flags) in enumerate(TIMES.items()):
        out = work.folder / f"times_{number}.txt"
        work.run([PYTHON, "-m", "benchmarks", "graphs", *flags.split()], f"times_{number}", out=out)
        for line in out.read_text().splitlines():
            if line.startswith("{"):  # a result in JSON, among lines that fairseq prints
                yield {"what": "times", "name": name} | json.loads(line)
        work.share((number + 1) / len(TIMES))


def two_at_a_time(work: Work) -> Iterator[dict]:
    """Train DeepNorm 10L-10L once alone, then two trainings of it side by side; yield a row for ALONE and one for TWO.

    "updates_a_second" counts the updates of all trainings that run at the time.
    """
    updates, interval = (30, 5) if work.miniature else (600, 50)
    flags = [*figure6.flags(work, "deepnorm", 10), "--no-save", "--disable-validation", f"--log-interval={interval}"]
    data = work.text / "mix"
    alone = Training(work, data, flags, updates, "alone")
    two = [Training(work, data, flags, updates, name) for name in ("first", "second")]

    alone_result = alone.run(share=0.4)  # 40% of the part
    yield {"what": ALONE, "updates_a_second": per_second([alone_result])}

    processes = [training.start() for training in two]
    results = []
    for training, process in zip(two, processes, strict=True):
        status = work.wait(process)
        if status != 0:
            raise PartFailed(f"{training.name} ended with status {status}: {last_line(training.log)}")
        results.append(training.result(status))
    yield {"what": TWO, "updates_a_second": per_second(results)}


def per_second(trainings: list[dict]) -> float:
    """Return the updates a second of trainings that ran at the same time, added up.

    trainings: what Training.result returned of each.
    """
    updates_a_second = sum(1 / training["seconds_an_update"] for training in trainings)
    return round(updates_a_second, 2)


def gain_of_two(records: list[dict]) -> float:
    """Return the updates a second of two trainings side by side over those of one alone; 1 if not measured.

    records: all that there are; the last measurement of two_at_a_time counts.
    """
    alone = rows(records, "two_at_a_time", ALONE)
    two = rows(records, "two_at_a_time", TWO)
    if not alone or not two:
        return 1.0
    return two[-1]["updates_a_second"] / alone[-1]["updates_a_second"]
