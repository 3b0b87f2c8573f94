"""The cells of plan.toml, and the records of those that are over.

A cell is one training. plan.toml describes groups of cells: a group has lists of methods, depths, learning rates,
warm-ups and seeds, and each combination of these is a cell. The comment at the top of plan.toml explains the keys of a
group. A group may wait for another one ("after"), whose best learning rates it may take; before that is over, its own
cells do not exist. A cell is over when its training has ended, well or not, and run.py has written its
record: a JSON object with the fields of the Cell, its "name", and how it "ended": trained, stuck or diverged.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path


class PlanError(Exception):
    """A mistake in plan.toml, or in the folder that run.py writes to (WORK), told in one line."""


@dataclass(frozen=True)
class Cell:
    """One training: a combination of one method, depth, learning rate, warm-up and seed of a group of the plan."""

    experiment: str  # A, B, C1, C2 or D, which design.md describes
    method: str
    layers: int  # of the encoder, and as many of the decoder
    lr: float  # the learning rate at its peak
    warmup: int  # updates in which the rate rises to the peak
    updates: int  # of the whole training
    seed: int
    task: str  # copy or reverse random symbols (symbols.py), or translate a text: language or mix (texts.py)
    stop_stuck: int  # value of --stop-stuck, by which symbols.py or fairseq-train ends a stuck training; 0: never
    seconds: float  # predicted processor seconds of an update
    schedule: str = ""  # "held": the rate stays after its warm-up and falls at the end; "": the task's own schedule
    probes: str = ""  # value of fairseq-train --deepnet-probe, recorded every 100 updates; "" for none

    @property
    def name(self) -> str:
        """Name of the cell's folder and record."""
        name = (
            f"{self.experiment}-{self.task}-{self.method}-{self.layers}L-lr{self.lr:g}-warmup{self.warmup}"
            f"-updates{self.updates}-seed{self.seed}"
        )
        if self.schedule:
            name += f"-{self.schedule}"
        return name

    @property
    def hours(self) -> float:
        """Predicted processor hours of the whole training."""
        return self.seconds * self.updates / 3600


@dataclass
class Records:
    """The records of all cells that are over."""

    by_cell: dict[str, dict] = field(default_factory=dict)  # by name of the cell

    @classmethod
    def read(cls, file: Path, runs: Path) -> Records:
        """Read the records of a file, and those in the folder `runs`, which the file may not have yet.

        file: one record a line; it may be missing. runs: the folder of the cells' folders, in which a cell that is over
        has a file record.json; its record there replaces that of the file.
        """
        records = []
        if file.exists():
            records += [json.loads(line) for line in file.read_text().splitlines()]
        records += [json.loads(path.read_text()) for path in sorted(runs.glob("*/record.json"))]
        return cls({record["name"]: record for record in records})

    def best_rate(self, cells: Iterable[Cell], method: str, layers: int) -> float | None:
        """Return the learning rate with which a method ended at the lowest loss at a depth.

        cells: those to compare; layers: of the encoder. None if no such cell has trained to its end.
        """
        trained = []  # records
        for cell in cells:
            record = self.by_cell.get(cell.name)
            if cell.method == method and cell.layers == layers and record and record["ended"] == "trained":
                trained.append(record)
        if not trained:
            return None
        best = min(trained, key=lambda record: record["final_loss"])
        return best["lr"]


def read_plan(path: Path) -> list[dict]:
    """Read the plan's groups in their order, as TOML has them; PlanError for a file that is no plan."""
    try:
        plan = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: {error}") from error
    if not plan.get("group"):
        raise PlanError(f"{path}: has no [[group]]")
    return plan["group"]


def cells_of(groups: list[dict], records: Records) -> list[Cell]:
    """Return the cells of all groups that do not wait for another, in the order of the plan.

    A group waits until every cell of the one in its "after" is over. PlanError for an "after" that names no group.
    """
    by_name = {group["name"]: group for group in groups}
    for group in groups:
        if "after" in group and group["after"] not in by_name:
            raise PlanError(f'plan: group "{group["name"]}": there is no group "{group["after"]}"')

    cells: list[Cell] = []
    for group in groups:
        if may_begin(group, by_name, records):
            cells += expand(group, by_name, records)
    return cells


def may_begin(group: dict, by_name: dict[str, dict], records: Records) -> bool:
    """Tell whether nothing keeps a group waiting: the group in its "after", the one in that one's, and so on are over.

    by_name: all groups of the plan, by name.
    """
    if "after" not in group:
        return True
    earlier = by_name[group["after"]]
    if not may_begin(earlier, by_name, records):
        return False
    return all(cell.name in records.by_cell for cell in expand(earlier, by_name, records))


def expand(group: dict, by_name: dict[str, dict], records: Records) -> Iterator[Cell]:
    """Yield the cells of a group, whose "after", if it has one, must be over: its best rates may be needed.

    by_name: all groups of the plan, by name.
    """
    for seed, layers in product(group["seeds"], group["layers"]):
        for method, warmup in product(group["methods"], group["warmups"]):
            for lr in rates_of(group, method, layers, by_name, records):
                yield Cell(
                    experiment=group["experiment"],
                    method=method,
                    layers=layers,
                    lr=lr,
                    warmup=warmup,
                    updates=group["updates"],
                    seed=seed,
                    task=group["task"],
                    stop_stuck=group.get("stop_stuck", 0),
                    seconds=group["seconds"][str(layers)],
                    schedule=group.get("schedule", ""),
                    probes=group.get("probes", ""),
                )


def rates_of(group: dict, method: str, layers: int, by_name: dict[str, dict], records: Records) -> list[float]:
    """Return the learning rates of a group for a method at a depth, given by the group's "lrs".

    "lrs" is a list of rates; "rule", for the rate 2e-3 (18 / layers)^0.6, which these experiments test (design.md);
    "best", for the best rate in the group that this one waits for; or "best by depth", for that rate carried from its
    depth to this one as the rule would have it. The best rate is that of the group's "best_method" at "best_layers", by
    default of `method` at `layers`. Where no such training of that group has come to its end, there is no rate. layers:
    of the encoder; by_name: all groups, by name.
    """
    if isinstance(group["lrs"], list):
        return group["lrs"]
    if group["lrs"] == "rule":
        return [to_two_digits(2e-3 * (18 / layers) ** 0.6)]

    earlier = expand(by_name[group["after"]], by_name, records)
    best_method = group.get("best_method", method)
    best_layers = group.get("best_layers", layers)
    best = records.best_rate(earlier, best_method, best_layers)
    if best is None:
        return []
    if group["lrs"] == "best by depth":
        best = to_two_digits(best * (best_layers / layers) ** 0.6)
    return [best]


def to_two_digits(rate: float) -> float:
    """Round a learning rate to two significant digits."""
    return float(f"{rate:.1e}")
