"""The best learning rate by depth: where trainings at some rates place it, its exponent, what follows elsewhere.

Rates are handled as octaves, log2; depths are layers of a model's deepest stack. docs/transfer.md has the definitions.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

import numpy as np
from scipy import stats

from ..core import archs
from ..errors import UserError
from .depth_study import outcome
from .runs import STACKS, RecordedRun

CONFIDENCE = 0.95  # of intervals
NOISE = 0.02  # bits, what seeds are taken to differ by where none were trained
FAR = 6.0  # times the deepest, at most: 18 to 100 layers is what the depth study can hold against trainings
VAGUE = 2.0  # octaves, at most, from a recommendation to the ends of its interval
STEP, STEPS = 1.0, 2.0  # octaves: a best rate that moved by one step at most stays, by two or more it does not
YES, NO, OPEN = "yes", "no", "open"


@dataclass(frozen=True)
class Trial:
    """One training. width: of its first stack; loss: bits per token, infinite where it came to nothing."""

    method: str
    width: int
    updates: int
    layers: int
    rate: float
    seed: int
    loss: float


@dataclass(frozen=True)
class Noise:
    """Standard deviation of a loss over seeds, bits, from so many degrees of freedom; without any it is stated."""

    bits: float
    freedom: int

    @property
    def quantile(self) -> float:
        """How many standard errors an interval reaches to either side: Student's t, or the normal if stated."""
        tail = (1 + CONFIDENCE) / 2
        return float(stats.t.ppf(tail, self.freedom) if self.freedom else stats.norm.ppf(tail))


@dataclass(frozen=True)
class Optimum:
    """The best rate at one depth.

    rate: NaN where it is not placed, and why says so. error: its standard error, octaves. low, high: rates that cost
    no more than the noise of the loss, by the parabola, and not beyond the neighbours of the best. loss: at rate.
    note: what is to be said of one that is placed.
    """

    layers: int
    lowest: float
    highest: float
    trainings: int
    rate: float = math.nan
    error: float = math.nan
    low: float = math.nan
    high: float = math.nan
    loss: float = math.nan
    why: str = ""
    note: str = ""

    @property
    def placed(self) -> bool:
        """Does it lie between two rates that were tried?"""
        return not self.why


@dataclass(frozen=True)
class Law:
    """rate = 2^height (layers / 2^centre)^exponent, fitted; errors are standard errors, octaves for the height.

    centre: mean of log2(layers), weighted, so that both errors are independent. quantile: of intervals.
    """

    exponent: float
    exponent_error: float
    centre: float
    height: float
    height_error: float
    quantile: float

    def exponents(self) -> tuple[float, float]:
        """The interval of the exponent."""
        reach = self.quantile * self.exponent_error
        return self.exponent - reach, self.exponent + reach

    def at(self, layers: int) -> Advice:
        """The rate for a depth and the interval in which the best is expected."""
        away = math.log2(layers) - self.centre
        octaves = self.height + self.exponent * away
        reach = self.quantile * math.hypot(self.height_error, self.exponent_error * away)
        return Advice(layers, 2**octaves, 2 ** (octaves - reach), 2 ** (octaves + reach))


@dataclass(frozen=True)
class Advice:
    """A peak learning rate for a depth, and the interval of the best there, from low to high."""

    layers: int
    rate: float
    low: float
    high: float


@dataclass(frozen=True)
class Transfer:
    """What the trainings of one method, width and length tell. law: None from fewer than two depths.

    stays, why: does the best rate stay where it is: yes, no or open, as docs/depth_study.md has it.
    """

    method: str
    width: int
    updates: int
    noise: Noise
    optima: tuple[Optimum, ...]
    law: Law | None
    stays: str
    why: str

    def refusal(self, layers: int) -> str:
        """Why no rate is recommended for that depth; "" where one is."""
        placed = [one.layers for one in self.optima if one.placed]
        unplaced = [f"{one.layers} layers: {one.why}" for one in self.optima if not one.placed]
        if self.law is None:
            return "; ".join(["the best rate is known at fewer than two depths", *unplaced])
        nearest = min(self.optima, key=lambda one: abs(math.log2(one.layers / layers)))
        if not nearest.placed:
            return f"of the nearest depth no best rate is known; {nearest.layers} layers: {nearest.why}"
        if not min(placed) / FAR <= layers <= max(placed) * FAR:
            known = f"known from {min(placed)} to {max(placed)} layers"
            return f"{layers} layers are more than {FAR:g} times away from what is measured ({known})"
        advice = self.law.at(layers)
        lowest, highest = min(one.lowest for one in self.optima), max(one.highest for one in self.optima)
        if not lowest <= advice.rate <= highest:
            return f"the best rate drifts to {advice.rate:.3g}, beyond those tried, {lowest:.3g} to {highest:.3g}"
        if math.log2(advice.high / advice.rate) > VAGUE:
            known = f"the best rate could lie anywhere from {advice.low:.1e} to {advice.high:.1e}"
            return f"{known}: train rates closer together, or more seeds"
        return ""

    def advice(self, layers: int) -> Advice:
        """The rate for that depth; UserError with the refusal where there is none."""
        why = self.refusal(layers)
        if why or self.law is None:
            raise UserError(f"{self.method}, {layers} layers: no rate is recommended: {why}")
        return self.law.at(layers)


def trial_of(run: RecordedRun) -> Trial:
    """UserError for a run that does not say its rate, or in which nothing was measured."""
    rate, updates = run.facts.get("lr"), run.facts.get("updates", 0)
    try:
        number = float(rate)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf or not isinstance(updates, int):
        raise UserError(f"{run.where()}: lr {rate!r}, updates {updates!r}: must be numbers; record the run again")
    layers = max(run.facts.get(key, 0) for key in STACKS)
    return Trial(run.method, width_of(run), updates, layers, number, run.seed or 0, loss_of(run))


def loss_of(run: RecordedRun) -> float:
    """Held-out at the end; where the run has no such loss, that of the last tenth of its training. Bits per token."""
    if run.ended_in_nan or run.stuck or run.parts.get("log", {}).get("valid"):
        return outcome(run)
    log = run.log
    last = [loss for update, loss in zip(log.updates, log.losses, strict=True) if update > 0.9 * log.updates[-1]]
    loss = sum(last) / len(last)
    return loss if math.isfinite(loss) else math.inf


def width_of(run: RecordedRun) -> int:
    """Of the residual stream of the first stack, by the run's facts, or by its command; 0 if neither says it."""
    if isinstance(run.facts.get("width"), int):
        return run.facts["width"]
    words = shlex.split(run.command or "")
    said = dict(pairwise(words))  # the last of two, as fairseq has it
    preset = archs.PRESETS.get(said.get("--arch", ""), {})
    for stack in ("encoder", "decoder"):
        width = said.get(f"--{stack}-embed-dim", preset.get(f"{stack}_embed_dim"))
        if width is not None:
            return int(width)
    return 0


def measured_noise(trials: Sequence[Trial], stated: float = NOISE) -> Noise:
    """Pooled over all rates and depths of which there are two seeds or more; else the stated one."""
    groups: dict[tuple[int, float], list[float]] = {}
    for trial in trials:
        if math.isfinite(trial.loss):
            groups.setdefault((trial.layers, trial.rate), []).append(trial.loss)
    freedom = sum(len(losses) - 1 for losses in groups.values())
    if not freedom:
        return Noise(stated, 0)
    squares = sum((len(losses) - 1) * float(np.var(losses, ddof=1)) for losses in groups.values() if len(losses) > 1)
    return Noise(math.sqrt(squares / freedom), freedom)


def grid(trials: Iterable[Trial]) -> dict[float, dict[int, float]]:
    """Rate -> seed -> loss, rates rising, of the trials of one depth."""
    found: dict[float, dict[int, float]] = {}
    for trial in sorted(trials, key=lambda trial: trial.rate):
        found.setdefault(trial.rate, {})[trial.seed] = trial.loss
    return found


def _compared(found: dict[float, dict[int, float]]) -> tuple[int, dict[float, float]]:
    """The seed that was tried at most rates, and its losses by rate: rates are compared at one seed."""
    seeds = sorted({seed for losses in found.values() for seed in losses})
    seed = max(seeds, key=lambda seed: sum(seed in losses for losses in found.values()))
    return seed, {rate: losses[seed] for rate, losses in found.items() if seed in losses}


def best_of(found: dict[float, dict[int, float]]) -> float | None:
    """The rate of the lowest loss; None where nothing was learnt."""
    losses = _compared(found)[1]
    best = min(losses, key=losses.__getitem__)
    return best if math.isfinite(losses[best]) else None


def optimum(trials: Sequence[Trial], noise: Noise) -> Optimum:
    """Of the trials of one depth: the vertex of the parabola through the best rate and its neighbours.

    The loss of each is the mean over the seeds that all three have. The error is that of three losses with the noise,
    to first order, and how far a cubic through one rate more has its lowest point from there. Beside a rate that came
    to nothing there is no parabola: the optimum is anywhere between the neighbours.
    """
    found = grid(trials)
    losses = _compared(found)[1]
    rates = sorted(losses)
    base = Optimum(trials[0].layers, rates[0], rates[-1], len(trials))
    best = best_of(found)
    if best is None:
        return replace(base, why=f"nothing was learnt at {_range(rates)}")
    place = rates.index(best)
    if place in (0, len(rates) - 1):
        edge = "lowest" if place == 0 else "highest"
        return replace(base, why=f"the best rate is at an edge, {best:.3g} the {edge} that was tried")
    three = rates[place - 1 : place + 2]
    shared = set.intersection(*(set(found[rate]) for rate in three))
    means = [fmean(found[rate][seed] for seed in shared) for rate in three]
    left, right = (math.log2(rate / best) for rate in (three[0], three[2]))
    nothing = [f"{rate:.3g}" for rate, loss in zip(three, means, strict=True) if not math.isfinite(loss)]
    if nothing:
        note = f"known by its neighbours alone, of which {' and '.join(nothing)} came to nothing"
        rate, error = best * 2 ** ((left + right) / 2), (right - left) / math.sqrt(12)  # equally likely in between
        return replace(base, rate=rate, error=error, low=best, high=best, loss=losses[best], note=note)
    solve = np.linalg.inv(np.vander([left, 0, right], 3))  # of losses: a, b, c of a x^2 + b x + c
    a, b, c = solve @ np.array(means)
    vertex = float(-b / (2 * a)) if a > 0 else math.inf
    if not left <= vertex <= right:
        return replace(base, why=f"over {len(shared)} seeds, {best:.3g} is no better than its neighbours")
    slope = -solve[1] / (2 * a) + b * solve[0] / (2 * a**2)  # of the vertex, by the losses
    error = noise.bits / math.sqrt(len(shared)) * float(np.linalg.norm(slope))
    error = math.hypot(error, _bent(losses, rates, place))
    half = math.sqrt(noise.bits / a)
    at = [best * 2 ** float(octaves) for octaves in (vertex, max(vertex - half, left), min(vertex + half, right))]
    rate, low, high = at
    return replace(base, rate=rate, error=error, low=low, high=high, loss=float(c - b**2 / (4 * a)))


def _range(rates: Sequence[float]) -> str:
    return f"{rates[0]:.3g} alone" if len(rates) == 1 else f"{len(rates)} rates from {rates[0]:.3g} to {rates[-1]:.3g}"


def _bent(losses: dict[float, float], rates: Sequence[float], place: int) -> float:
    """Octaves from the parabola's lowest point to that of a cubic through one rate more, the most; 0 without one."""
    x = np.log2(rates) - math.log2(rates[place])
    y = np.array([losses[rate] for rate in rates])
    inside = np.linspace(x[place - 1], x[place + 1], 401)

    def lowest(first: int, last: int) -> float:
        curve = np.polyfit(x[first:last], y[first:last], last - first - 1)
        return float(inside[np.argmin(np.polyval(curve, inside))])

    three = (place - 1, place + 2)
    four = [(first, last) for first, last in ((three[0] - 1, three[1]), (three[0], three[1] + 1))
            if first >= 0 and last <= len(rates) and np.isfinite(y[first:last]).all()]  # fmt: skip
    return max((abs(lowest(*window) - lowest(*three)) for window in four), default=0.0)


def fit(optima: Iterable[Optimum], noise: Noise) -> Law | None:
    """The power law through the best rates, each weighted by its error; None from fewer than two depths.

    Where they scatter more than their errors say, these are scaled up to the scatter (Birge's ratio).
    """
    placed = [one for one in optima if one.placed]
    if len(placed) < 2:
        return None
    x, y = (
        np.array(values) for values in zip(*((math.log2(o.layers), math.log2(o.rate)) for o in placed), strict=True)
    )
    weights = np.array([max(one.error, 1e-6) for one in placed]) ** -2.0
    centre = float(np.average(x, weights=weights))
    spread = float(np.sum(weights * (x - centre) ** 2))
    height, exponent = float(np.average(y, weights=weights)), float(np.sum(weights * (x - centre) * y) / spread)
    left = float(np.sum(weights * (y - height - exponent * (x - centre)) ** 2))
    scale = math.sqrt(max(1.0, left / (len(placed) - 2))) if len(placed) > 2 else 1.0
    errors = scale / math.sqrt(spread), scale / math.sqrt(float(np.sum(weights)))
    return Law(exponent, errors[0], centre, height, errors[1], noise.quantile)


def stays(optima: Sequence[Optimum], trials: Sequence[Trial]) -> tuple[str, str]:
    """Does the best rate stay where it is, and why; the definition is docs/depth_study.md's, question 1."""
    if len(optima) < 2:
        return OPEN, "one depth"
    for one in optima:
        if not one.placed:
            return OPEN, f"{one.layers} layers: {one.why}"
    notes = [f"{one.layers} layers: {one.note}" for one in optima if one.note]
    answer, why = _stays(optima, trials)
    return answer, "; ".join([why, *notes])


def _stays(optima: Sequence[Optimum], trials: Sequence[Trial]) -> tuple[str, str]:
    moves = [math.log2(one.rate / optima[0].rate) for one in optima]
    way, largest = moves[-1], max(map(abs, moves))
    moved = f"moves by a factor of {2**largest:.2g} at most"
    if abs(way) >= STEPS and all(later * way >= earlier * way for earlier, later in pairwise(moves)):
        return NO, f"moves by a factor of {2**way:.2g} from {optima[0].layers} to {optima[-1].layers} layers, one way"
    if largest > STEP:
        return OPEN, moved
    grids = {one.layers: grid(t for t in trials if t.layers == one.layers) for one in optima}
    first = best_of(grids[optima[0].layers])
    ranges = {layers: _seeds_range(found) for layers, found in grids.items()}
    for layers, found in list(grids.items())[1:]:
        allowed = ranges[layers] or max(ranges.values())
        cost = _cost(found, first)
        at = f"at {layers} layers the best rate of {optima[0].layers}"
        if not allowed:
            return OPEN, f"{moved}; no seeds to compare a cost with"
        if cost is None:
            return OPEN, f"{moved}; {at} was not tried"
        if cost > allowed:
            return OPEN, f"{moved}; {at} costs {cost:.3f} bits, seeds differ by {allowed:.3f}"
    return YES, moved


def _seeds_range(found: dict[float, dict[int, float]]) -> float:
    """Largest less smallest loss over seeds at the best rate, bits; 0 from one seed."""
    best = best_of(found)
    losses = [loss for loss in found[best].values() if math.isfinite(loss)] if best is not None else []
    return max(losses) - min(losses) if losses else 0.0


def _cost(found: dict[float, dict[int, float]], rate: float | None) -> float | None:
    """Bits lost at a tried rate against the best, of one seed; None where it was not tried, or nothing was learnt."""
    losses = _compared(found)[1]
    near = [known for known in losses if rate and abs(math.log2(known / rate)) < 0.01]
    best = min(losses.values())
    return losses[near[0]] - best if near and math.isfinite(best) else None


def loss_lost(trials: Sequence[Trial], rate: float) -> float | None:
    """Bits lost by the tried rate that is nearest to `rate` against the best; None if none is within half an octave."""
    losses = _compared(grid(trials))[1]
    near = min(losses, key=lambda known: abs(math.log2(known / rate)))
    return _cost(grid(trials), near) if abs(math.log2(near / rate)) <= 0.5 else None


def analyse(trials: Sequence[Trial], stated: float = NOISE) -> Transfer:
    """Of the trials of one method, width and length; stated: the noise where there is one seed alone."""
    noise = measured_noise(trials, stated)
    depths = sorted({trial.layers for trial in trials})
    optima = tuple(optimum([t for t in trials if t.layers == layers], noise) for layers in depths)
    first = trials[0]
    return Transfer(first.method, first.width, first.updates, noise, optima, fit(optima, noise), *stays(optima, trials))


def by_method(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Those that can be compared with each other: of one method, width and number of updates, in that order."""
    groups: dict[tuple, list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.method, trial.width, trial.updates), []).append(trial)
    return [groups[key] for key in sorted(groups)]
