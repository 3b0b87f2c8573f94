"""The best learning rate by depth: where trainings at some rates place it, its exponent, what follows elsewhere.

Rates are handled as octaves, log2; depths are layers of a model's deepest stack. docs/transfer.md has the definitions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .optimum import NOISE, Noise, Optimum, bend, measured_noise, optimum, quantile
from .stays import stays
from .trials import Trial, counted

FAR = 6.0  # times the deepest, or the shallowest: the depth study is to hold 18 to 100 layers against trainings
VAGUE = 2.0  # octaves, at most, from a recommendation to the ends of its interval
LARGEST = 1000.0  # octaves, beyond which numbers end


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
        """The rate for a depth and the interval of the fitted line there; single depths scatter about the line."""
        away = math.log2(layers) - self.centre
        octaves = self.height + self.exponent * away
        reach = self.quantile * math.hypot(self.height_error, self.exponent_error * away)
        rate, low, high = (2 ** max(-LARGEST, min(x, LARGEST)) for x in (octaves, octaves - reach, octaves + reach))
        return Advice(layers, rate, low, high)


@dataclass(frozen=True)
class Advice:
    """A peak learning rate for a depth, and the interval of the fitted line there, from low to high."""

    layers: int
    rate: float
    low: float
    high: float


@dataclass(frozen=True)
class Transfer:
    """What the trainings of one method, width, shape and length tell. law: None from fewer than two depths.

    shape: as a Trial has it. stays, why: does the best rate stay where it is: yes, no or open; docs/depth_study.md.
    """

    method: str
    width: int
    updates: int
    noise: Noise
    optima: tuple[Optimum, ...]
    law: Law | None
    stays: str
    why: str
    shape: tuple[int, int] = (1, 1)

    def refusal(self, layers: int) -> str:
        """Why no rate is recommended for that depth; "" where one is."""
        placed = [one.layers for one in self.optima if one.placed]
        unplaced = [f"{counted(one.layers)}: {one.why}" for one in self.optima if not one.placed]
        if self.law is None:
            return "; ".join(["the best rate is known at fewer than two depths", *unplaced])
        nearest = min(self.optima, key=lambda one: abs(math.log2(one.layers / layers)))
        if not nearest.placed:
            return f"of the nearest depth no best rate is known; {counted(nearest.layers)}: {nearest.why}"
        if not min(placed) / FAR <= layers <= max(placed) * FAR:
            known = f"known from {min(placed)} to {max(placed)} layers"
            away = f"more than {FAR:g} times away from what is measured ({known})"
            return f"{counted(layers)} {'is' if layers == 1 else 'are'} {away}"
        advice = self.law.at(layers)
        lowest, highest = min(one.lowest for one in self.optima), max(one.highest for one in self.optima)
        if not lowest <= advice.rate <= highest:
            return f"the best rate drifts to {advice.rate:.3g}, beyond those tried, {lowest:.3g} to {highest:.3g}"
        if math.log2(advice.high / advice.rate) > VAGUE:
            known = f"the best rate could lie anywhere from {advice.low:.1e} to {advice.high:.1e}"
            return f"{known}: train rates closer together, or more seeds"
        return ""


def fit(optima: Iterable[Optimum], noise: Noise) -> Law | None:
    """The power law through the best rates, each weighted by its error; None from fewer than two depths.

    Where they scatter more than their errors say, these are scaled up to the scatter (Birge's ratio), and intervals
    go by as many degrees of freedom as it is known from.
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
    freedom = len(placed) - 2
    scattered = freedom and left > freedom
    scale, reach = (math.sqrt(left / freedom), quantile(freedom)) if scattered else (1.0, noise.quantile)
    errors = scale / math.sqrt(spread), scale / math.sqrt(float(np.sum(weights)))
    return Law(exponent, errors[0], centre, height, errors[1], reach)


def analyse(trials: Sequence[Trial], stated: float = NOISE) -> Transfer:
    """Of the trials of one method, width, shape and length; stated: the noise where there is one seed alone."""
    noise = measured_noise(trials, stated)
    depths = [[t for t in trials if t.layers == layers] for layers in sorted({trial.layers for trial in trials})]
    most = max((bent for there in depths if (bent := bend(there)) is not None), default=None)
    optima = tuple(optimum(there, noise, most) for there in depths)
    law, one = fit(optima, noise), trials[0]
    answer, why = stays(optima, trials, law and law.exponents())
    return Transfer(one.method, one.width, one.updates, noise, optima, law, answer, why, one.shape)
