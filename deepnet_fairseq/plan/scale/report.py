"""A scenario as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ...text_table import render
from ..fit import recomputation
from ..report import describe, gib
from ..setting import GIB
from .hardware import GIGA, TERA
from .modes import NAMES
from .outcome import Outcome, Scenario, Timed
from .saves import size

HOUR = 3600
INDEX_LIMIT = 16 * GIB  # bytes of an epoch's order that a process is taken to have room for


@dataclass(frozen=True)
class Report:
    """outcomes: of each number of GPUs and mode; limits: as outcome.limits gives them; pairs: of the corpus."""

    scenario: Scenario
    pairs: float
    outcomes: dict[int, dict[str, Outcome | str]]
    limits: list[tuple[int, Outcome]]

    def as_dict(self) -> dict:
        """For JSON; bytes, seconds, days, GPU-hours."""
        scenario = self.scenario
        return {
            "setting": describe(scenario.model.given),
            "parameters": scenario.model.parameters.total,
            "batch": scenario.batch,
            "updates": scenario.updates,
            "passes": self.passes,
            "pairs": self.pairs,
            "efficiencies": scenario.efficiencies,
            "hardware": asdict(scenario.hardware),
            "index": {"seconds": self.index_seconds, "bytes": self.index_bytes, "shards": self.shards},
            "gpus": {n: {mode: _outcome(one) for mode, one in found.items()} for n, found in self.outcomes.items()},
            "limits": [
                {"gpus": n, "limit": one.times[-1].limit, "sharding": one.setting.sharding} for n, one in self.limits
            ],
        }

    @property
    def passes(self) -> float:
        """How often the training goes over the corpus."""
        return self.scenario.updates * self.scenario.batch / (self.pairs * self.scenario.model.given.length)

    @property
    def index_seconds(self) -> float:
        """Seconds in which each process sorts and batches one pass over the corpus."""
        return self.pairs * self.scenario.measured.index_seconds

    @property
    def index_bytes(self) -> float:
        """Bytes that the order of one pass takes in each process."""
        return self.pairs * self.scenario.measured.index_bytes

    @property
    def shards(self) -> int:
        """Parts that the corpus must be cut into, for a process's order of one to stay within INDEX_LIMIT."""
        return max(1, -(-int(self.index_bytes) // INDEX_LIMIT))

    def as_text(self) -> str:
        """A table of modes for each number of GPUs, the ways to save, and where the limits change."""
        parts = [self._title(), self._corpus()]
        for gpus, found in self.outcomes.items():
            parts.append(f"{gpus:,} GPUs\n" + _modes(found))
            if fits := [one for one in found.values() if isinstance(one, Outcome)]:
                parts.append(_saves(min(fits, key=lambda one: one.times[-1].days), self.scenario))
        return "\n\n".join([*parts, self._limits()])

    def _title(self) -> str:
        scenario, given = self.scenario, self.scenario.model.given
        machine, cfg = scenario.hardware, given.cfg
        peak = machine.peak(given.precision.itemsize) / TERA
        shares = " to ".join(f"{100 * share:g}%" for share in scenario.efficiencies)
        lines = [
            f"{cfg.arch}, {cfg.encoder_layers}-{cfg.decoder_layers}, {scenario.model.parameters.total:,} parameters",
            f"{given.precision.name}, {given.optimizer.name}; {scenario.batch:,} target tokens an update",
            f"{machine.name}: {shares} of {peak:g} TFLOP/s, {machine.memory / GIB:g} GiB; {machine.source}",
            f"a failure every {machine.mtbf:,.0f} GPU-hours; storage {machine.storage / GIGA:g} GB/s; "
            f"a checkpoint has {size(scenario.model) / GIGA:.2f} GB",
        ]
        return "\n".join(lines)

    def _corpus(self) -> str:
        scenario, shards = self.scenario, self.shards
        parts = "in one" if shards == 1 else f"so cut it into {shards:,} (DATA1:DATA2:...)"
        return (
            f"{scenario.updates:,} updates are {self.passes:.2f} passes over {self.pairs:,.0f} pairs of "
            f"{scenario.model.given.length} target tokens\n"
            f"the order of one pass: {self.index_seconds / HOUR:,.2f} hours and {gib(self.index_bytes)} GiB in every "
            f"process; {parts}"
        )

    def _limits(self) -> str:
        rows = [["from GPUs", "most time goes into", "fastest mode", "days"]]
        for gpus, one in self.limits:
            time = one.times[-1]
            rows.append([f"{gpus:,}", time.limit, NAMES[one.setting.sharding], f"{time.days:,.1f}"])
        return render(rows)


def _modes(found: dict[str, Outcome | str]) -> str:
    header = ["mode", "GiB", "batches", "recompute", "update s", *_PARTS, "lost", "days", "GPU-hours"]
    rows = [header]
    for mode, one in found.items():
        rows.append([NAMES[mode], *(_row(one) if isinstance(one, Outcome) else [one, *[""] * (len(header) - 2)])])
    return render(rows)


_PARTS = ("computing", "launching", "network", "loading")


def _row(one: Outcome) -> list[str]:
    time, setting = one.times[-1], one.setting
    days = " to ".join(f"{each.days:,.1f}" for each in reversed(one.times))
    hours = " to ".join(f"{one.gpu_hours(each):,.0f}" for each in reversed(one.times))
    return [
        gib(one.memory.peak),
        f"{setting.max_tokens:,} x {setting.update_freq}",
        "layers" if setting.checkpoint_every else "no",
        f"{time.update:.3g}",
        *(f"{100 * time.parts[part] / time.update:.0f}%" for part in _PARTS),
        f"{100 * time.lost:.2f}%",
        days,
        hours,
    ]


def _saves(one: Outcome, scenario: Scenario) -> str:
    """The fastest mode's."""
    rows = [["saves", "stop s", "whole after s", "every min", "updates", "lost"]]
    for way in one.saves:
        rows.append(
            [
                way.name,
                f"{way.stops:.2g}",
                f"{way.written:.2g}",
                f"{way.interval / 60:,.0f}",
                f"{max(1, round(way.interval / one.times[-1].update)):,}",
                f"{100 * way.lost:.2f}%",
            ]
        )
    mtbf = scenario.hardware.mtbf / one.setting.gpus
    return f"{NAMES[one.setting.sharding]}: a failure every {mtbf:,.1f} hours\n{render(rows)}"


def _outcome(one: Outcome | str) -> dict | str:
    if isinstance(one, str):
        return one
    setting = one.setting
    return {
        "max_tokens": setting.max_tokens,
        "update_freq": setting.update_freq,
        "flags": recomputation(setting.checkpoint_every),
        "memory": one.memory.as_dict(),
        "times": [_time(one, time) for time in one.times],
        "saves": [asdict(way) for way in one.saves],
    }


def _time(one: Outcome, time: Timed) -> dict:
    summary = {"update": time.update, "days": time.days, "gpu_hours": one.gpu_hours(time), "limit": time.limit}
    return summary | {"parts": time.parts, "sent": time.spent.sent}
