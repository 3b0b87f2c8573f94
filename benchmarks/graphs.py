"""Seconds of an update with and without CUDA graphs, beside stock fairseq: the same batches, several updates in a row.

Candidates are "stock" (fairseq's transformer, adam), "plain" (this package, deepnet_adam), "waits" (as "plain", with a
norm that fairseq reads from the GPU at each comparison), "graphs" (as "plain", with --cuda-graphs), and "graphs-torch"
(as "graphs", without graphs/kernels.py).
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Iterable
from typing import Any

import numpy
import torch
from fairseq.trainer import Trainer

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.graphs.capture import CudaDevice
from deepnet_fairseq.plugin.graphs.static_batch import shape_of
from deepnet_fairseq.plugin.graphs.step import GraphedStep
from deepnet_fairseq.tools.environment import environment

from .models import MODELS, OURS, size, trainer_of, update
from .timing import STOCK

STEPS = {"graphs": True, "graphs-torch": False}  # candidate with graphs -> whether it has graphs/kernels.py
CANDIDATES = (STOCK, "waits", "plain", *STEPS)
FULL = 0.85  # of --max-tokens, which a batch has to fill: the few short ones of an epoch are left out


def graphs(args: argparse.Namespace) -> None:
    """Print a line of JSON for each candidate: the setting, what Candidate.row returns, and the machine.

    With --kernels a second line for each candidate follows, which has its longest kernels in place of the row. args:
    the flags of `python -m benchmarks graphs`. UserError without a GPU, or for an unknown candidate.
    """
    if not torch.cuda.is_available():
        raise UserError("graphs: torch sees no GPU here")
    names = args.candidates.split(",")
    unknown = [name for name in names if name not in CANDIDATES]
    if unknown:
        raise UserError(f"--candidates {','.join(unknown)}: unknown; choose of {', '.join(CANDIDATES)}")

    where = environment(gpus=1)
    candidates = {name: Candidate(name, args) for name in names}
    for number in range(args.rounds):
        order = names if number % 2 == 0 else names[::-1]  # so that no candidate always comes first
        for name in order:
            candidates[name].run(args.updates)

    condition = {"depth": args.depth, "width": args.width, "tokens": args.max_tokens, "update_freq": args.update_freq}
    machine = {"device": where["hardware"], "torch": torch.__version__}
    for candidate in candidates.values():
        print(json.dumps(condition | candidate.row() | machine), flush=True)
    if args.kernels:
        for candidate in candidates.values():
            row = {"candidate": candidate.name, "kernels_ms": candidate.kernels(args.updates, most=args.kernels)}
            print(json.dumps(condition | row | machine), flush=True)


class Candidate:
    """The training of a candidate, and the seconds of its updates."""

    def __init__(self, name: str, args: argparse.Namespace):
        """Build the training, capture its graphs if it has any, and make an update of each batch.

        These first updates are timed together, apart from those of `run`. name: one of CANDIDATES; args: the command's
        flags.
        """
        self.name = name
        self.update_freq = args.update_freq  # batches of an update
        candidate_flags = MODELS[STOCK] if name == STOCK else (*MODELS[OURS], "--method=deepnorm")
        # with a loss scale of 4 hardly any batch overflows
        flags = [*size(args.depth, args.width), *candidate_flags, "--fp16", "--fp16-init-scale=4"]
        flags += [f"--max-tokens={args.max_tokens}", f"--benchmark-vocabulary={args.vocabulary}", *args.flags]

        torch.cuda.reset_peak_memory_stats()
        bytes_before = torch.cuda.memory_allocated()  # of the other candidates
        self.trainer = trainer_of(flags)
        self.batches = full_batches(self.trainer, args.max_tokens, args.batches)
        if name == "waits":  # the optimiser leaves the norm on the GPU, and each of fairseq's comparisons fetches it
            self.trainer.optimizer.fp32_optimizer.reads_norm = False

        start = time.perf_counter()
        if name in STEPS:  # set here, for these batches alone, as GraphedStep.plan sets it for those of an epoch
            padding = self.trainer.task.target_dictionary.pad()
            step = GraphedStep(len(self.batches), padding, CudaDevice(faster=STEPS[name]))
            step.pending_shapes = step.epoch_shapes = unique_shapes(self.batches)
            self.trainer.use_graphs(step)
        for batch in self.batches:
            update(self.trainer, batch)
        torch.cuda.synchronize()
        self.first_updates = time.perf_counter() - start  # seconds of the first update of each batch, with the captures
        self.seconds: list[float] = []  # of an update, by round
        self.peak = torch.cuda.max_memory_allocated() - bytes_before  # bytes

    def run(self, updates: int) -> None:
        """Make so many updates in a row, as a training does, and note the mean seconds of one."""
        gc.collect()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for number in range(updates):
            first = number * self.update_freq
            places = range(first, first + self.update_freq)  # of the update's batches; they are taken again and again
            self.trainer.train_step([self.batches[place % len(self.batches)] for place in places])
        torch.cuda.synchronize()
        self.seconds.append((time.perf_counter() - start) / updates)

    def kernels(self, updates: int, most: int) -> dict[str, float]:
        """Make so many updates in a row; return the `most` kernels that take the most time, as longest_kernels does."""
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            self.run(updates)
        return longest_kernels(profiler.key_averages(), updates, most)

    def row(self) -> dict:
        """Return what was measured: the median milliseconds of an update over the rounds, and more.

        "ms_range": of the fastest and of the slowest round; "target_tokens_per_s"; "first_updates_s": seconds of the
        first update of each batch together, with the captures; "peak_GiB": memory. With graphs also how many batches
        were "served" by graphs and how many were "left" to fairseq, the "obstacle" that ended the graphs, or None, and
        how many "graphs" there are.
        """
        middle = statistics.median(self.seconds)
        tokens = statistics.mean(batch["ntokens"] for batch in self.batches) * self.update_freq  # of an update
        row = {
            "candidate": self.name,
            "ms": round(1000 * middle, 1),
            "ms_range": [round(1000 * min(self.seconds), 1), round(1000 * max(self.seconds), 1)],
            "target_tokens_per_s": round(tokens / middle),
            "first_updates_s": round(self.first_updates, 1),
            "peak_GiB": round(self.peak / 2**30, 2),
        }
        step = self.trainer.graphs
        if step is not None:
            row |= {
                "served": step.served,
                "left": step.unserved,
                "obstacle": step.obstacle,
                "graphs": len(step.captured),
            }
        return row


def longest_kernels(averages: Iterable[Any], updates: int, most: int) -> dict[str, float]:
    """Return the milliseconds that an update spends in each kernel, of the `most` that take the most of it.

    The result is {the kernel's name: milliseconds}, in falling order, after {"all": those of all kernels}. averages:
    what torch's profiler has seen, an entry for each name, with `key` and microseconds as `self_device_time_total`;
    updates: how many it has seen.
    """
    milliseconds = {entry.key: entry.self_device_time_total / 1000 / updates for entry in averages}
    found = {"all": round(sum(milliseconds.values()), 2)}
    longest = sorted(milliseconds, key=milliseconds.__getitem__, reverse=True)[:most]
    for name in longest:
        found[name] = round(milliseconds[name], 2)
    return found


def full_batches(trainer: Trainer, max_tokens: int, number: int) -> list[dict]:
    """Return at most `number` batches of the first epoch, no two of the same shape, each nearly full: see FULL.

    trainer: fairseq's, which yields batches of `max_tokens` at most.
    """
    iterator = trainer.get_train_iterator(1)
    trainer.begin_epoch(1)
    found: dict[tuple, dict] = {}
    for batch in iterator.next_epoch_itr(shuffle=True):
        shape = shape_of(batch)  # sentences, and their lengths on both sides
        tokens = shape[0] * max(shape[1:])  # with padding, as fairseq counts a batch
        if tokens > FULL * max_tokens:
            found.setdefault(shape, batch)
        if len(found) == number:
            break
    return list(found.values())


def unique_shapes(batches: list[dict]) -> numpy.ndarray:
    """Return the different shapes of batches for GraphedStep: rows (sentences, source length, target length)."""
    return numpy.unique(numpy.array([shape_of(batch) for batch in batches]), axis=0)
