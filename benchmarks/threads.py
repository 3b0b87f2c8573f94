"""Seconds of an update on a CPU by width, threads and busy cores, by which deepnet_fairseq/threads.py decides."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.files import check_file, whole
from deepnet_fairseq.threads import available_cores
from deepnet_fairseq.tools.environment import environment

from .models import batches, trainer_of, update
from .timing import Cell, Column, table, take_turns

# width -> layers of each stack. Wide models have fewer, since an update would take many seconds; this changes little,
# because the length of a layer's operations decides whether threads pay.
LAYERS = {64: 18, 128: 18, 256: 12, 512: 6}
TRAINING = (
    "--arch=deepnet_transformer", "--method=deepnorm", "--optimizer=adam", "--dropout=0", "--cpu",
    "--max-tokens=1000", "--benchmark-vocabulary=1000",
)  # fmt: skip
LONGEST = 4  # a repeat ends after so many times --seconds, where threads wait for each other very long
# program that keeps a core busy: it spins until its parent is gone; nothing pins it to a core, as nothing pins another
# user's program
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(100_000): pass"


class Condition(NamedTuple):
    """What an update is timed under."""

    threads: int  # of the update
    busy: int  # number of other programs, each of which keeps a core busy

    def __str__(self) -> str:
        """Name the condition in a table, as "2 threads, 1 busy"."""
        noun = "threads" if self.threads > 1 else "thread"
        return f"{self.threads} {noun}, {self.busy} busy"


def threads(args: argparse.Namespace) -> None:
    """Measure each width under all conditions in turn, print its table, and write all records to --out at the end.

    A record is a line of JSON for a width and a condition: its "median" and its "seconds" by round. args: the flags of
    `python -m benchmarks threads`. UserError for more threads than cores.
    """
    check_file("--out", Path(args.out))
    if max(args.threads) > available_cores():
        raise UserError(
            f"--threads {max(args.threads)}: more than the {available_cores()} cores that this program may use"
        )

    conditions = [Condition(number, busy) for number, busy in itertools.product(args.threads, args.busy)]
    machine = environment(gpus=0) | {"load": os.getloadavg()[0]}
    threads_before = torch.get_num_threads()
    records = []
    try:
        for width in args.widths:
            layers = 1 if args.smoke else LAYERS.get(width, 6)  # 6: for a width that is not in LAYERS
            cells, updates = measure(width, layers, conditions, args)
            print(table(["width", "updates"], [Column("seconds")], list(cells.values())), flush=True)
            for condition in conditions:
                seconds = cells[str(condition)].values("seconds")
                records.append({
                    "width": width, "layers": layers, "updates": updates, "threads": condition.threads,
                    "busy": condition.busy, "median": statistics.median(seconds), "seconds": seconds,
                    "environment": machine,
                })  # fmt: skip
    finally:
        torch.set_num_threads(threads_before)
    with whole(Path(args.out)) as part:
        part.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def measure(
    width: int, layers: int, conditions: list[Condition], args: argparse.Namespace
) -> tuple[dict[str, Cell], int]:
    """Time the updates of a model under all conditions in turn; return (cells by name of the condition, updates).

    A cell has the "seconds" of an update. updates: how many a repeat makes, those of about args.seconds with one
    thread; a repeat that takes much longer is ended sooner. width: embed_dim; layers: of each stack; args: the
    command's flags. UserError if a repeat fails.
    """
    trainer = trainer_of([*TRAINING, *shape(width, layers)])
    trainer.begin_epoch(1)
    given = batches(trainer, 50)
    torch.set_num_threads(1)
    update(trainer, given[0])  # makes the optimiser's state
    begun = time.perf_counter()
    update(trainer, given[1])
    one_update = time.perf_counter() - begun  # seconds
    if args.smoke:
        updates = 1
        rounds = 1
    else:
        updates = max(2, min(len(given), round(args.seconds / one_update)))
        rounds = args.rounds

    def run(condition: Condition, repeat: int) -> dict[str, float]:
        """Make a repeat's updates, or one in the warm-up; return the seconds of an update."""
        torch.set_num_threads(condition.threads)
        wanted = updates if repeat >= 0 else 1
        with busy(condition.busy):
            start = time.perf_counter()
            done = 0
            taken = 0.0
            while done < wanted and taken < LONGEST * args.seconds:
                update(trainer, given[done])
                done += 1
                taken = time.perf_counter() - start
        return {"seconds": taken / done}

    cells = {}
    runs = {}
    for condition in conditions:
        name = str(condition)
        cells[name] = Cell(name, (str(width), str(updates)))
        runs[name] = partial(run, condition)
    take_turns(cells, runs, range(-1, rounds))
    failed = [cell for cell in cells.values() if cell.reason]
    if failed:
        raise UserError(f"--widths {width}: {failed[0].candidate}: {failed[0].reason}")
    return cells, updates


def shape(width: int, layers: int) -> list[str]:
    """Return the flags of a model with embed_dim `width` and so many layers in each stack.

    ffn_embed_dim is four times the width, or twice up to 64, as in the `tiny` architecture; a head has 64 features, but
    there are two heads at least.
    """
    fields = {"layers": layers, "embed-dim": width, "attention-heads": max(2, width // 64)}
    fields["ffn-embed-dim"] = 2 * width if width <= 64 else 4 * width
    flags = []
    for stack in ("encoder", "decoder"):
        flags += [f"--{stack}-{name}={value}" for name, value in fields.items()]
    return flags


@contextmanager
def busy(programs: int) -> Iterator[None]:
    """Keep so many cores busy in a `with` block, by `programs` that spin and are killed at its end."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(programs)]
    try:
        if spinning:
            time.sleep(0.5)  # until they spin
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()
