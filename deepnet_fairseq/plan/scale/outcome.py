"""A training on so many GPUs in each mode: what fits, how long it takes, what it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import UserError
from ..fit import FEWEST_TOKENS, USABLE
from ..memory import Memory
from ..setting import Setting
from .hardware import Hardware
from .measured import Measured
from .model import Model, Pace
from .modes import LAYOUTS, update
from .saves import Saves, saves
from .timeline import Spent

MOST_GPUS = 4096
DAY = 86_400


@dataclass(frozen=True)
class Scenario:
    """A training, and what it runs on.

    batch: target tokens of an update over all GPUs; updates: of the training; efficiencies: share of the peak that
    matrix products and what stands between them reach, least first; workers: processes that make batches, a GPU.
    """

    model: Model
    hardware: Hardware
    measured: Measured
    batch: int
    updates: int
    efficiencies: tuple[float, ...]
    workers: int

    @property
    def paces(self) -> list[Pace]:
        """One for each efficiency, in their order."""
        return [Pace(self.hardware, self.measured, share, self.model.graphed) for share in self.efficiencies]


@dataclass(frozen=True)
class Timed:
    """An update at one efficiency. loading: seconds that it waits for its batches, lost: share of all time."""

    spent: Spent
    loading: float
    lost: float
    updates: int

    @property
    def update(self) -> float:
        """Seconds of an update, with the wait for its batches; saves and failures are apart."""
        return self.spent.total + self.loading

    @property
    def days(self) -> float:
        """Of the whole training, saves and failures included; infinite where nothing gets done."""
        return self.updates * self.update / (1 - self.lost) / DAY if self.lost < 1 else float("inf")

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of an update, saves and failures spread over all."""
        away = self.update * self.lost / (1 - self.lost) if self.lost < 1 else float("inf")
        spent = {"computing": self.spent.device, "launching": self.spent.host, "network": self.spent.network}
        return spent | {"loading": self.loading, "saves and failures": away}

    @property
    def limit(self) -> str:
        """The part that takes most of the time."""
        return max(self.parts, key=self.parts.__getitem__)


@dataclass(frozen=True)
class Outcome:
    """A mode on some GPUs: times, least efficient first; saves: ways to save; own: the one that the times are with."""

    setting: Setting
    memory: Memory
    times: list[Timed]
    saves: list[Saves]
    own: Saves

    def gpu_hours(self, time: Timed) -> float:
        """All GPUs' hours of the training at one of the times."""
        return time.days * 24 * self.setting.gpus


def outcome(scenario: Scenario, gpus: int, sharding: str) -> Outcome | str:
    """The faster of what fits with and without recomputation in the largest batches; why there is none."""
    try:
        fitting = [
            setting for recomputed in (False, True) if (setting := _largest(scenario, gpus, sharding, recomputed))
        ]
    except UserError as error:
        return str(error)
    if not fitting:
        return "does not fit"
    return min((_timed(scenario, setting) for setting in fitting), key=lambda found: found.times[-1].days)


def outcomes(scenario: Scenario, gpus: int) -> dict[str, Outcome | str]:
    """Every mode's, by name; on one GPU there is nothing to shard."""
    modes = [mode for mode in LAYOUTS if gpus > 1 or mode == "none"]
    return {mode: outcome(scenario, gpus, mode) for mode in modes}


def best(scenario: Scenario, gpus: int) -> Outcome | None:
    """The fastest mode, None if nothing fits."""
    found = [one for one in outcomes(scenario, gpus).values() if isinstance(one, Outcome)]
    return min(found, key=lambda one: one.times[-1].days) if found else None


def limits(scenario: Scenario) -> list[tuple[int, Outcome]]:
    """Powers of two of GPUs at which another thing begins to take the most time, with the fastest mode there."""
    found: list[tuple[int, Outcome]] = []
    gpus = 1
    while gpus <= MOST_GPUS and gpus * scenario.model.given.length <= scenario.batch:
        one = best(scenario, gpus)
        if one and (not found or one.times[-1].limit != found[-1][1].times[-1].limit):
            found.append((gpus, one))
        gpus *= 2
    return found


def _largest(scenario: Scenario, gpus: int, sharding: str, recomputed: bool) -> Setting | None:
    """The largest batches that fit, by halves of --max-tokens."""
    model = scenario.model
    if recomputed and model.graphed:  # which --cuda-graphs refuses
        return None
    for tokens, update_freq in _batches(model.given, scenario.batch, gpus):
        setting = model.on(gpus, sharding, tokens, update_freq, recomputed)
        if model.memory(setting).peak <= USABLE * scenario.hardware.memory:
            return setting
    return None


def _batches(given: Setting, batch: int, gpus: int) -> Iterator[tuple[int, int]]:
    tokens = min(given.max_tokens, batch // gpus)
    if tokens < given.length:
        raise UserError(f"{batch:,} tokens an update are too few for {gpus:,} GPUs and sentences of {given.length}")
    fewest = max(given.length, min(tokens, FEWEST_TOKENS))
    while tokens >= fewest:
        yield tokens, max(1, round(batch / (gpus * tokens)))
        tokens //= 2


def _timed(scenario: Scenario, setting: Setting) -> Outcome:
    ways = saves(scenario.model, setting, scenario.hardware, scenario.measured)
    own = ways[1] if setting.sharding == "fully_sharded" else ways[0]
    made = setting.max_tokens * setting.update_freq / (scenario.measured.loader * scenario.workers)
    times = []
    for pace in scenario.paces:
        spent = update(scenario.model, setting, pace)
        times.append(Timed(spent, max(0.0, made - spent.total), own.lost, scenario.updates))
    return Outcome(setting, scenario.model.memory(setting), times, ways, own)
