"""The best learning rate at one depth: where trainings at some rates place it, and how well."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from scipy import stats

from .trials import Trial, best_of, compared, grid

CONFIDENCE = 0.95  # of intervals
NOISE = 0.02  # bits, what seeds are taken to differ by where none were trained
UNSEEN = 1 / 8  # of the octaves between neighbours: error of the vertex of a curve of which three rates alone are seen


@dataclass(frozen=True)
class Noise:
    """Standard deviation of a loss over seeds, bits, from so many degrees of freedom; without any it is stated."""

    bits: float
    freedom: int

    @property
    def quantile(self) -> float:
        """How many standard errors an interval reaches to either side: Student's t, or the normal if stated."""
        return quantile(self.freedom) if self.freedom else float(stats.norm.ppf((1 + CONFIDENCE) / 2))


def quantile(freedom: int) -> float:
    """Of Student's t: standard errors to either side of an interval."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))


@dataclass(frozen=True)
class Optimum:
    """The best rate at one depth.

    rate: NaN where it is not placed, and why says so. error: its standard error, octaves. low, high: rates that cost
    no more than the noise of the loss, by the parabola, and not beyond the neighbours of the best; NaN without a
    parabola. loss: at rate. note: what is to be said of one that is placed.
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


def optimum(trials: Sequence[Trial], noise: Noise, elsewhere: float | None = None) -> Optimum:
    """Of the trials of one depth: the vertex of the parabola through the best rate and its neighbours.

    The loss of each is the mean over the seeds that all three have. The error is that of three losses with the noise,
    to first order, and bend(); where there is no rate more, that is the most it is at other depths, `elsewhere`, or
    UNSEEN. Beside a rate that came to nothing there is no parabola: the optimum is anywhere between the neighbours.
    """
    found = grid(trials)
    losses = compared(found)[1]
    rates = sorted(losses)
    base = Optimum(trials[0].layers, rates[0], rates[-1], len(trials))
    best = best_of(found)
    if best is None:
        return replace(base, why=f"nothing was learnt at {_range(rates)}")
    place = rates.index(best)
    if place in (0, len(rates) - 1):
        if len(rates) == 1:
            return replace(base, why=f"only {best:.3g} was tried")
        edge = "lowest" if place == 0 else "highest"
        return replace(base, why=f"the best rate is at an edge, {best:.3g} the {edge} that was tried")
    failed = sum(not math.isfinite(loss) for loss in found[best].values())
    if failed:
        return replace(base, why=f"the best rate, {best:.3g}, came to nothing at {failed} of {len(found[best])} seeds")
    three = rates[place - 1 : place + 2]
    shared = set.intersection(*(set(found[rate]) for rate in three))
    means = [fmean(found[rate][seed] for seed in shared) for rate in three]
    left, right = (math.log2(rate / best) for rate in (three[0], three[2]))
    nothing = [f"{rate:.3g}" for rate, loss in zip(three, means, strict=True) if not math.isfinite(loss)]
    if nothing:
        note = f"known by its neighbours alone, of which {' and '.join(nothing)} came to nothing"
        first, last = _alike(rates, losses, noise)
        left, right = (math.log2(rates[end] / best) for end in (max(first - 1, 0), last + 1))
        rate, error = best * 2 ** ((left + right) / 2), (right - left) / math.sqrt(12)  # equally likely in between
        return replace(base, rate=rate, error=error, loss=losses[best], note=note)
    solve = np.linalg.inv(np.vander([left, 0, right], 3))  # of losses: a, b, c of a x^2 + b x + c
    a, b, c = solve @ np.array(means)
    vertex = float(-b / (2 * a)) if a > 0 else math.inf
    if not left <= vertex <= right:
        return replace(base, why=f"over {len(shared)} seeds, {best:.3g} is no better than its neighbours")
    slope = -solve[1] / (2 * a) + b * solve[0] / (2 * a**2)  # of the vertex, by the losses
    error = noise.bits / math.sqrt(len(shared)) * float(np.linalg.norm(slope))
    unseen = UNSEEN * (right - left) if elsewhere is None else elsewhere
    bent = bend(trials)
    error = math.hypot(error, unseen if bent is None else bent)
    half = math.sqrt(noise.bits / a)
    at = [best * 2 ** float(octaves) for octaves in (vertex, max(vertex - half, left), min(vertex + half, right))]
    rate, low, high = at
    return replace(base, rate=rate, error=error, low=low, high=high, loss=float(c - b**2 / (4 * a)))


def _alike(rates: Sequence[float], losses: dict[float, float], noise: Noise) -> tuple[int, int]:
    """The places, first and last, of the rates around the best that it beats by no more than two seeds differ."""
    best = min(rates, key=losses.__getitem__)
    first = last = rates.index(best)
    allowed = losses[best] + math.sqrt(2) * noise.bits
    while first > 0 and losses[rates[first - 1]] <= allowed:
        first -= 1
    while last + 1 < len(rates) - 1 and losses[rates[last + 1]] <= allowed:
        last += 1
    return first, last


def _range(rates: Sequence[float]) -> str:
    return f"{rates[0]:.3g} alone" if len(rates) == 1 else f"{len(rates)} rates from {rates[0]:.3g} to {rates[-1]:.3g}"


def bend(trials: Sequence[Trial]) -> float | None:
    """Octaves from the parabola's lowest point to that of a cubic through one rate more, the most.

    Of the trials of one depth; None where there is no such rate.
    """
    found = grid(trials)
    losses, best = compared(found)[1], best_of(found)
    rates = sorted(losses)
    place = rates.index(best) if best else 0
    if best is None or place in (0, len(rates) - 1):
        return None
    x = np.log2(rates) - math.log2(best)
    y = np.array([losses[rate] for rate in rates])
    inside = np.linspace(x[place - 1], x[place + 1], 401)

    def lowest(first: int, last: int) -> float:
        curve = np.polyfit(x[first:last], y[first:last], last - first - 1)
        return float(inside[np.argmin(np.polyval(curve, inside))])

    three = (place - 1, place + 2)
    four = [(first, last) for first, last in ((three[0] - 1, three[1]), (three[0], three[1] + 1))
            if first >= 0 and last <= len(rates) and np.isfinite(y[first:last]).all()]  # fmt: skip
    return max((abs(lowest(*window) - lowest(*three)) for window in four), default=None)
