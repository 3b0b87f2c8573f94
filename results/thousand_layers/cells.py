"""The cells of plan.toml, and the records of those that are over.

A cell is one training. plan.toml describes groups of cells: a group has lists of methods, depths, warm-ups and seeds,
and each combination of these is a cell. A group may wait for another one ("after"), whose best learning rates it takes.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path


class PlanError(Exception):
    """A mistake in plan.toml or in WORK, in one line."""


@dataclass(frozen=True)
class Cell:
    """One training: an entry of the plan with one method, depth, learning rate, warm-up and seed."""

    experiment: str
    method: str
    layers: int  # of the encoder, and as many of the decoder
    lr: float  # at its peak
    warmup: int  # updates
    updates: int
    seed: int
    task: str  # copy or reverse, or the text: language or mix
    stop_stuck: int  # update from which a training that is stuck ends; 0 lets it go on
    seconds: float  # predicted, of an update
    schedule: str = ""  # "held": the rate stays after its warm-up and falls at the end; else the text's own schedule
    probes: str = ""  # of fairseq-train --deepnet-probe, every 100 updates

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
        """Predicted processor hours."""
        return self.seconds * self.updates / 3600


@dataclass
class Records:
    """The records of cells that are over, by name of the cell."""

    by_cell: dict[str, dict] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path, runs: Path) -> Records:
        """Read the records of a file, and those of the folder `runs`, which the file may not have yet.

        file: one record a line. runs: folder of the cells' folders; a cell that is over has a file record.json.
        """
        records = []
        if file.exists():
            records += [json.loads(line) for line in file.read_text().splitlines()]
        records += [json.loads(path.read_text()) for path in sorted(runs.glob("*/record.json"))]
        return cls({record["name"]: record for record in records})

    def best_rate(self, cells: Iterable[Cell], method: str, layers: int) -> float | None:
        """Find the rate of the lowest final loss of a method at a depth; None if nothing trained to its end."""
        wanted = [cell for cell in cells if cell.method == method and cell.layers == layers]
        over = [self.by_cell[cell.name] for cell in wanted if cell.name in self.by_cell]
        trained = [record for record in over if record["ended"] == "trained"]
        if not trained:
            return None
        best = min(trained, key=lambda record: record["final_loss"])
        return best["lr"]


def read_plan(path: Path) -> list[dict]:
    """Read the groups of the plan, in their order; PlanError for a file that is no plan."""
    try:
        plan = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: {error}") from error
    if not plan.get("group"):
        raise PlanError(f"{path}: has no [[group]]")
    return plan["group"]


def cells_of(groups: list[dict], records: Records) -> list[Cell]:
    """Name the cells in the order of the plan; those of a group that waits for another come when that is over."""
    by_name = {group["name"]: group for group in groups}
    for group in groups:
        if group.get("after", group["name"]) not in by_name:
            raise PlanError(f'plan: group "{group["name"]}": there is no group "{group["after"]}"')

    cells: list[Cell] = []
    for group in groups:
        if may_begin(group, by_name, records):
            cells += expand(group, by_name, records)
    return cells


def may_begin(group: dict, by_name: dict[str, dict], records: Records) -> bool:
    """Tell whether all groups are over that this one waits for: its "after", the "after" of that one, and so on.

    by_name: all groups of the plan, by name.
    """
    if "after" not in group:
        return True
    earlier = by_name[group["after"]]
    if not may_begin(earlier, by_name, records):
        return False
    return all(cell.name in records.by_cell for cell in expand(earlier, by_name, records))


def expand(group: dict, by_name: dict[str, dict], records: Records) -> Iterator[Cell]:
    """Yield the cells of a group. by_name: all groups of the plan, by name."""
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
    """Return the learning rates of a group for a method at a depth; plan.toml says what its words mean.

    There is none where nothing of the group it waits for has trained to its end. by_name: all groups, by name.
    """
    if isinstance(group["lrs"], list):
        return group["lrs"]
    if group["lrs"] == "rule":
        return [to_two_digits(2e-3 * (18 / layers) ** 0.6)]

    # "best", or "best by depth": of the group that this one waits for
    found_at = group.get("best_layers", layers)
    earlier = expand(by_name[group["after"]], by_name, records)
    best = records.best_rate(earlier, group.get("best_method", method), found_at)
    if best is not None and group["lrs"] == "best by depth":
        best = to_two_digits(best * (found_at / layers) ** 0.6)
    return [] if best is None else [best]


def to_two_digits(rate: float) -> float:
    """Round a learning rate to two significant digits."""
    return float(f"{rate:.1e}")
