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

# width -> layers of each stack: fewer where an update would take many seconds, for a layer's operations decide
LAYERS = {64: 18, 128: 18, 256: 12, 512: 6}
TRAINING = (
    "--arch=deepnet_transformer", "--method=deepnorm", "--optimizer=adam", "--dropout=0", "--cpu",
    "--max-tokens=1000", "--benchmark-vocabulary=1000",
)  # fmt: skip
LONGEST = 4  # times --seconds: a repeat ends then, where threads wait for each other for ever
# spins until its parent is gone; nothing pins it to a core, as nothing pins another user's program
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(100_000): pass"


class Condition(NamedTuple):
    """Number of threads, and of other programs that keep a core busy each."""

    threads: int
    busy: int

    def __str__(self) -> str:
        return f"{self.threads} thread{'s' * (self.threads > 1)}, {self.busy} busy"


def threads(args: argparse.Namespace) -> None:
    """Measure each width under all conditions in turn, print a table, and write a record for each cell."""
    check_file("--out", Path(args.out))
    if max(args.threads) > available_cores():
        raise UserError(f"--threads {max(args.threads)}: this machine has {available_cores()} cores for it")
    conditions = [Condition(*one) for one in itertools.product(args.threads, args.busy)]
    place = environment(0) | {"load": os.getloadavg()[0]}
    before, records = torch.get_num_threads(), []
    try:
        for width in args.widths:
            layers = 1 if args.smoke else LAYERS.get(width, 6)
            cells, updates = measure(width, layers, conditions, args)
            print(table(["width", "updates"], [Column("seconds")], list(cells.values())), flush=True)
            for condition in conditions:
                seconds = cells[str(condition)].values("seconds")
                facts = {"width": width, "layers": layers, "updates": updates} | condition._asdict()
                records.append(facts | {"median": statistics.median(seconds), "seconds": seconds, "environment": place})
    finally:
        torch.set_num_threads(before)
    with whole(Path(args.out)) as part:
        part.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def measure(
    width: int, layers: int, conditions: list[Condition], args: argparse.Namespace
) -> tuple[dict[str, Cell], int]:
    """Return the cells of a width by condition, with the seconds of an update, and how many updates a repeat makes.

    The number of updates is that of about args.seconds with one thread, and the same for all conditions, but for a
    repeat that takes much longer.
    """
    trainer = trainer_of([*TRAINING, *shape(width, layers)])
    trainer.begin_epoch(1)
    given = batches(trainer, 50)
    torch.set_num_threads(1)
    update(trainer, given[0])  # makes the optimiser's state
    begun = time.perf_counter()
    update(trainer, given[1])
    updates = 1 if args.smoke else max(2, min(len(given), round(args.seconds / (time.perf_counter() - begun))))

    def run(condition: Condition, repeat: int) -> dict[str, float]:
        torch.set_num_threads(condition.threads)
        some = given[:updates] if repeat >= 0 else given[:1]
        with busy(condition.busy):
            start, done, taken = time.perf_counter(), 0, 0.0
            while done < len(some) and taken < LONGEST * args.seconds:
                update(trainer, some[done])
                done += 1
                taken = time.perf_counter() - start
        return {"seconds": taken / done}

    cells = {str(condition): Cell(str(condition), (str(width), str(updates))) for condition in conditions}
    runs = {str(condition): partial(run, condition) for condition in conditions}
    take_turns(cells, runs, range(-1, 1 if args.smoke else args.rounds))
    if failed := [cell for cell in cells.values() if cell.reason]:
        raise UserError(f"--widths {width}: {failed[0].candidate}: {failed[0].reason}")
    return cells, updates


def shape(width: int, layers: int) -> list[str]:
    """Return the flags of a model of that width; at 64 the feed-forward width is twice as large, as in `tiny`."""
    fields = {"layers": layers, "embed-dim": width, "attention-heads": max(2, width // 64)}
    fields["ffn-embed-dim"] = width * (2 if width <= 64 else 4)
    return [f"--{stack}-{name}={value}" for stack in ("encoder", "decoder") for name, value in fields.items()]


@contextmanager
def busy(programs: int) -> Iterator[None]:
    """Keep as many cores busy as there are `programs`, each of which spins."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(programs)]
    try:
        if spinning:
            time.sleep(0.5)  # until they spin
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()
