"""Do two measurements put methods in the same order? Spearman's and Kendall's coefficients, and what chance gives.

With four methods there are 24 orders, so that not even full agreement is rarer than one in 24, or one in 12 of both
signs: n and the least p there could be stand beside each number.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from scipy.stats import rankdata

ALL = 8  # so many methods at most are put in all orders, 40,320; of more, drawn ones
DRAWN = 20_000
CLOSE = 1e-9


@dataclass(frozen=True)
class Agreement:
    """Of the orders in which two measurements put `methods`; ties have their mean rank.

    spearman, kendall (tau-b): 1 for the same order, -1 for the reverse, NaN where one puts all on a level. *_p: the
    share of all orders of the one in which the coefficient is as far from 0, in either direction; of 20,000 drawn ones
    for more than eight methods. least_p: the smallest that Spearman's could be here; NaN where orders are drawn.
    """

    methods: tuple[str, ...]
    spearman: float
    spearman_p: float
    kendall: float
    kendall_p: float
    least_p: float


def agreement(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Agreement:
    """Of the methods that both have; infinities are values like others."""
    methods = tuple(sorted(ours.keys() & theirs.keys()))
    x, y = (rankdata([of[method] for method in methods]) for of in (ours, theirs))
    if len({*x}) < 2 or len({*y}) < 2:
        return Agreement(methods, *[math.nan] * 5)
    orders = _orders(len(methods))
    rho = _centred(x) @ _centred(y)[orders].T
    signs = np.sign(x[:, None] - x), np.sign(y[:, None] - y)
    tau = sum(signs[0][i, j] * signs[1][orders[:, i], orders[:, j]] for i in range(len(x)) for j in range(i))
    tau = tau / (math.sqrt(np.abs(signs[0]).sum() * np.abs(signs[1]).sum()) / 2)
    least = _share(rho, np.abs(rho).max()) if len(methods) <= ALL else math.nan
    return Agreement(methods, rho[0], _share(rho, rho[0]), tau[0], _share(tau, tau[0]), least)


def _centred(ranks: np.ndarray) -> np.ndarray:
    """Of mean 0 and length 1."""
    centred = ranks - ranks.mean()
    return centred / np.linalg.norm(centred)


def _share(values: np.ndarray, found: float) -> float:
    return float(np.mean(np.abs(values) >= abs(found) - CLOSE))


def _orders(count: int) -> np.ndarray:
    """(orders, count) of indices, that of the measurement first."""
    if count <= ALL:
        return np.array(list(permutations(range(count))))
    generator, found = random.Random(1), [list(range(count))]
    while len(found) < DRAWN:
        found.append(generator.sample(found[0], count))
    return np.array(found)
