"""Straight lines through points, with what the points leave open."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import UserError

CONFIDENCE = 0.95  # of the intervals


@dataclass(frozen=True)
class Line:
    """y = slope x + intercept by least squares; r2: share of y's variance on the line.

    slope_error, intercept_error: half of the 95% confidence interval (Student's t); NaN for two points.
    """

    slope: float
    intercept: float
    slope_error: float
    intercept_error: float
    r2: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.slope * x + self.intercept


def line(x, y) -> Line:
    """The line through points (n,), (n,) by ordinary least squares; UserError with fewer than two different x."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    if len(set(x.tolist())) < 2:
        raise UserError(f"a line needs two depths or more, there are {len(set(x.tolist()))}; record another run")
    n, spread = len(x), ((x - x.mean()) ** 2).sum()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / spread
    intercept = y.mean() - slope * x.mean()
    rest, total = ((y - slope * x - intercept) ** 2).sum(), ((y - y.mean()) ** 2).sum()
    r2 = 1 - rest / total if total else math.nan
    reach = student_t(n - 2) * math.sqrt(rest / (n - 2)) if n > 2 else math.nan
    slope_error = reach / math.sqrt(spread)
    intercept_error = reach * math.sqrt(1 / n + x.mean() ** 2 / spread)
    return Line(float(slope), float(intercept), float(slope_error), float(intercept_error), float(r2))


def power_law(x, y) -> Line:
    """y = 10^intercept x^slope, fitted as a line in log10 x and log10 y; both must be above 0."""
    return line(np.log10(x), np.log10(y))


def student_t(freedom: int) -> float:
    """The t with P(-t < T < t) = CONFIDENCE, by bisection."""
    low, high = 0.0, 1.0
    while _between(high, freedom) < CONFIDENCE:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _between(middle, freedom) < CONFIDENCE else (low, middle)
    return high


def _between(t: float, freedom: int) -> float:
    """P(-t < T < t): the finite sums 26.7.3 and 26.7.4 of Abramowitz and Stegun (1964)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, cosine if freedom > 1 else 0.0) if odd else (1.0, 1.0)
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
