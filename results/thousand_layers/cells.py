"""The cells of plan.toml, and the records of those that are over."""

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
    layers: int
    lr: float
    warmup: int
    updates: int
    seed: int
    task: str  # copy or reverse, or the text: language or mix
    stop_stuck: int
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

    over: dict[str, dict] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path, runs: Path) -> Records:
        """Read those of a file, and those of `runs` that it may not have yet."""
        records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        records += [json.loads(path.read_text()) for path in sorted(runs.glob("*/record.json"))]
        return cls({record["name"]: record for record in records})

    def best_rate(self, cells: Iterable[Cell], method: str, layers: int) -> float | None:
        """Find the rate of the lowest final loss of a method at a depth; None if nothing trained to its end."""
        cells = [cell for cell in cells if (cell.method, cell.layers) == (method, layers)]
        over = [self.over[cell.name] for cell in cells if cell.name in self.over]
        trained = [one for one in over if one["ended"] == "trained"]
        return min(trained, key=lambda one: one["final_loss"])["lr"] if trained else None


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
    return [cell for group in groups if may_begin(group, by_name, records) for cell in expand(group, by_name, records)]


def may_begin(group: dict, by_name: dict[str, dict], records: Records) -> bool:
    """Tell whether the group that this one waits for is over, and the one that that waits for."""
    if "after" not in group:
        return True
    earlier = by_name[group["after"]]
    cells = expand(earlier, by_name, records)
    return may_begin(earlier, by_name, records) and all(cell.name in records.over for cell in cells)


def expand(group: dict, by_name: dict[str, dict], records: Records) -> Iterator[Cell]:
    """Give the cells of a group."""
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
    """Give the learning rates of a group at a depth; plan.toml says what its words mean.

    There is none where nothing of the group it waits for has trained to its end.
    """
    if isinstance(group["lrs"], list):
        return group["lrs"]
    if group["lrs"] == "rule":
        return [to_two_digits(2e-3 * (18 / layers) ** 0.6)]
    found_at = group.get("best_layers", layers)
    earlier = expand(by_name[group["after"]], by_name, records)
    best = records.best_rate(earlier, group.get("best_method", method), found_at)
    if best is not None and group["lrs"] == "best by depth":
        best = to_two_digits(best * (found_at / layers) ** 0.6)
    return [] if best is None else [best]


def to_two_digits(rate: float) -> float:
    """Round a learning rate."""
    return float(f"{rate:.1e}")
