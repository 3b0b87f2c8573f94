"""The depth study's cells: which comes next by what is found so far. What they found as tables: depth_tables.py.

docs/depth_study.md is the design. A plan is a TOML file, scripts/depth_study/plan.toml, of stages in their order; a
cell is one training: a method, N-N layers, a learning rate, a seed. Rates are steps k, of base x 2^k.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.methods import METHODS
from ..errors import UserError
from ..files import WRONG_VALUES
from .runs import RecordedRun

HOUR = 3600.0
FIRST = 1  # the seed that grids are trained with


@dataclass(frozen=True)
class Cell:
    """One training.

    stage: its place in the plan, from 1; rate: the peak; flags: further ones of fairseq-train; grid: is it as long as
    those that rates are compared by?
    """

    stage: int
    method: str
    layers: int
    step: float
    rate: float
    seed: int
    updates: int
    flags: tuple[str, ...]
    grid: bool = True

    @property
    def name(self) -> str:
        """Of its run, as "deepnorm-18-lr0.002-seed1"; with its updates, if they are not those of the grids."""
        lasting = "" if self.grid else f"-updates{self.updates}"
        return f"{self.method}-{self.layers}-lr{self.rate:g}-seed{self.seed}{lasting}"

    def __str__(self) -> str:
        """A line for a shell to read."""
        words = (self.name, self.method, self.layers, self.seed, f"{self.rate:g}", self.updates, *self.flags)
        return " ".join(map(str, words))


@dataclass(frozen=True)
class Stage:
    """Cells that belong together.

    steps: of the rate, in all of `layers` for all `methods`, or, if `about` is given, around the best that the method
    has at so many layers, 0 for the cell's own depth, in cells of a grid. refine: both neighbours of the best rate of
    the stage's own length follow, until it has them. flags: behind those of the method and of the plan for it.
    """

    number: int
    title: str
    methods: tuple[str, ...]
    layers: tuple[int, ...]
    steps: tuple[float, ...] = ()
    about: int | None = None
    refine: bool = False
    seeds: tuple[int, ...] = (FIRST,)
    updates: int = 0
    flags: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        """Do its cells depend on what others have found?"""
        return self.refine or self.about is not None


@dataclass(frozen=True)
class Plan:
    """base: of the rates; lowest, highest: steps; seconds: of processor of an update, by layers; budget: in hours.

    updates: of a cell, where its stage says nothing else; translated: from so many on it is translated with.
    """

    base: float
    lowest: int
    highest: int
    updates: int
    translated: int
    budget: float
    seconds: dict[int, float]
    flags: dict[str, tuple[str, ...]]
    stages: tuple[Stage, ...]

    def hours(self, cell: Cell) -> float:
        """Predicted; NaN for a depth that was not measured."""
        return self.seconds.get(cell.layers, math.nan) * cell.updates / HOUR

    def only(self, methods: Collection[str]) -> Plan:
        """What there is of it for these. UserError for one that it does not have."""
        known = {method for stage in self.stages for method in stage.methods}
        if unknown := [method for method in methods if method not in known]:
            raise UserError(f"METHODS: {unknown[0]} is in no stage of the plan")
        kept = (replace(stage, methods=tuple(m for m in stage.methods if m in methods)) for stage in self.stages)
        return replace(self, stages=tuple(stage for stage in kept if stage.methods))


def read_plan(path: Path) -> Plan:
    """UserError for a file that holds none, or names a method or a group that is unknown."""
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
        stages = []
        for number, entry in enumerate(read.pop("stage"), 1):
            group = entry.pop("methods")
            methods = tuple(read["groups"].get(group, ()) if isinstance(group, str) else group)
            if unknown := [name for name in methods if name not in METHODS] or ([] if methods else [group]):
                raise UserError(f"{path}: stage {number}: method {unknown[0]} is unknown; see `deepnet methods`")
            lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
            stages.append(Stage(number, methods=methods, **({"updates": read["updates"]} | entry | lists)))
        flags = {method: tuple(words) for method, words in read["flags"].items()}
        seconds = {int(layers): value for layers, value in read["seconds"].items()}
        del read["groups"]
        return Plan(**(read | {"flags": flags, "seconds": seconds, "stages": tuple(stages)}))
    except (OSError, *WRONG_VALUES) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: is no plan of a depth study ({error}); see scripts/depth_study/plan.toml") from error


def neighbours(tried: dict[int, float], lowest: int, highest: int) -> list[int]:
    """Steps, from lowest to highest, still to be tried for the best to lie between two; tried: step -> loss.

    Where none has learnt: those between, then below all.
    """
    best = min(tried, key=tried.__getitem__, default=0)
    wanted: Iterable[int] = ()
    if math.isfinite(tried.get(best, math.inf)):
        wanted = best - 1, best + 1
    elif tried:
        wanted = sorted(set(range(min(tried), max(tried))) - tried.keys(), reverse=True) or [min(tried) - 1]
    return [step for step in wanted if step not in tried and lowest <= step <= highest]


class Found:
    """What runs have found: losses[name of the cell], held out, in bits; infinite where a training came to nothing."""

    def __init__(self, plan: Plan, losses: dict[str, float]):
        self.plan, self.losses = plan, losses

    def rates(self, method: str, layers: int, updates: int = 0) -> dict[int, float]:
        """Step -> loss, of the first seed; updates: of the cells, 0 for those of a grid."""
        found, stage = {}, Stage(0, "", (method,), (layers,), updates=updates or self.plan.updates)
        for step in range(self.plan.lowest, self.plan.highest + 1):
            name = self.cell(stage, method, layers, step).name
            if name in self.losses:
                found[step] = self.losses[name]
        return found

    def best(self, method: str, layers: int) -> int | None:
        """The step of the lowest loss; None where nothing was learnt, or nothing tried."""
        finite = {step: loss for step, loss in self.rates(method, layers).items() if math.isfinite(loss)}
        return min(finite, key=finite.__getitem__) if finite else None

    def neighbours(self, method: str, layers: int, updates: int = 0) -> list[int]:
        """Steps that are still to be tried for the best to lie between two."""
        return neighbours(self.rates(method, layers, updates), self.plan.lowest, self.plan.highest)

    def cell(self, stage: Stage, method: str, layers: int, step: float, seed: int = FIRST) -> Cell:
        """Of that stage."""
        flags = (*METHODS[method].train_flags, *self.plan.flags.get(method, ()), *stage.flags)
        rate, grid = self.plan.base * 2**step, stage.updates == self.plan.updates
        return Cell(stage.number, method, layers, step, rate, seed, stage.updates, flags, grid)

    def of_stage(self, stage: Stage) -> Iterator[Cell]:
        """Its cells as far as they can be named now: depth by depth, step by step, for one method after the other."""
        for layers in stage.layers:
            for seed in stage.seeds:
                starts = {method: self._steps(stage, method, layers) for method in stage.methods}
                for number in range(max(map(len, starts.values()))):
                    for method, steps in starts.items():
                        if number < len(steps):
                            yield self.cell(stage, method, layers, steps[number], seed)
            for method in stage.methods if stage.refine else ():
                begun = all(self.cell(stage, method, layers, step).name in self.losses for step in starts[method])
                for step in self.neighbours(method, layers, stage.updates) if begun else ():
                    yield self.cell(stage, method, layers, step)

    def _steps(self, stage: Stage, method: str, layers: int) -> list[float]:
        """That it begins with; where nothing was learnt at the depth that it goes by, the plan's base rate alone."""
        if stage.about is None:
            return list(stage.steps)
        there = stage.about or layers
        best, tried = self.best(method, there), self.rates(method, there)
        if best is None:
            return [0] if tried and stage.seeds == (FIRST,) else []
        within = (best + step for step in stage.steps)
        return [step for step in within if self.plan.lowest <= step <= self.plan.highest]

    def cells(self) -> Iterator[Cell]:
        """All that can be named now, in their order, those that are over among them.

        A stage that waits for others is left out, with what follows it, until they are over.
        """
        said: set[str] = set()
        behind = False
        for stage in self.plan.stages:
            if behind and stage.waits:
                return
            for cell in self.of_stage(stage):
                behind = behind or cell.name not in self.losses
                if cell.name not in said:
                    said.add(cell.name)
                    yield cell

    def next(self) -> Cell | None:
        """The first that is not over; None at the end."""
        return next((cell for cell in self.cells() if cell.name not in self.losses), None)


def outcome(run: RecordedRun) -> float:
    """Its last held-out loss, bits per token; infinite for one that diverged, was stuck or has no such number.

    Stuck: ended by --stop-stuck, or at the end no better than its fact `guessing`, the loss by frequencies alone.
    """
    loss = math.inf if run.ended_in_nan or run.stuck else run.validation.final
    return loss if loss < float(run.facts.get("guessing", math.inf)) else math.inf


def found_by(plan: Plan, runs: Iterable[RecordedRun]) -> Found:
    """What those runs, whose names are their cells', have found."""
    return Found(plan, {run.name: outcome(run) for run in runs})


def leaders(runs: Iterable[RecordedRun]) -> list[RecordedRun]:
    """The run of the lowest loss of each method, depth and number of updates, where one has learnt anything."""
    best: dict[tuple[str, int, int], RecordedRun] = {}
    for run in runs:
        key = run.method, run.layers, run.facts["updates"]
        if outcome(run) < outcome(best.setdefault(key, run)):
            best[key] = run
    return [run for run in best.values() if math.isfinite(outcome(run))]


def spent_hours(runs: Iterable[RecordedRun]) -> float:
    """Of one processor, in all that was done for the runs."""
    parts = (part for run in runs for part in run.parts.get("spent", {}).values())
    return sum(part.get("processor_seconds", 0.0) for part in parts) / HOUR
