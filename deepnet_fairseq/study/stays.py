"""Does a method's best learning rate stay where it is over depth? Question 1 of docs/depth_study.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from .optimum import Optimum
from .trials import Trial, best_of, cost, counted, grid

STEP, STEPS = 1.0, 2.0  # octaves: a best rate that moved by one step at most stays, by two or more it does not
SEEDS = 3  # of a best rate, over which losses have a range
YES, NO, OPEN = "yes", "no", "open"


def stays(optima: Sequence[Optimum], trials: Sequence[Trial], exponents: tuple[float, float] | None) -> tuple[str, str]:
    """Yes, no or open, and why. exponents: the interval of the law's, None without a law."""
    if len(optima) < 2:
        return OPEN, "one depth"
    for one in optima:
        if not one.placed:
            return OPEN, f"{counted(one.layers)}: {one.why}"
    notes = [f"{counted(one.layers)}: {one.note}" for one in optima if one.note]
    answer, why = _by_moves(optima, exponents) or _by_cost(optima, trials)
    return answer, "; ".join([why, *notes])


def _by_moves(optima: Sequence[Optimum], exponents: tuple[float, float] | None) -> tuple[str, str] | None:
    """What is said of best rates that moved by more than a step; "no" is more than noise could make of a constant."""
    moves = [math.log2(one.rate / optima[0].rate) for one in optima]
    way = moves[-1]
    if abs(way) >= STEPS and all(later * way >= earlier * way for earlier, later in pairwise(moves)):
        moved = f"moves by a factor of {2**way:.2g} from {optima[0].layers} to {optima[-1].layers} layers, one way"
        if exponents and not exponents[0] <= 0 <= exponents[1]:
            return NO, moved
        return OPEN, f"{moved}; the exponent could be 0"
    return (OPEN, _most(optima)) if math.log2(_factor(optima)) > STEP else None


def _factor(optima: Sequence[Optimum]) -> float:
    """Of the largest best rate over the smallest."""
    rates = [one.rate for one in optima]
    return max(rates) / min(rates)


def _most(optima: Sequence[Optimum]) -> str:
    return f"moves by a factor of {_factor(optima):.2g} at most"


def _by_cost(optima: Sequence[Optimum], trials: Sequence[Trial]) -> tuple[str, str]:
    """Does the best rate of the first depth cost less at the others than seeds differ?

    Where a depth has fewer than SEEDS they are taken to differ as little as they do at any other.
    """
    moved = _most(optima)
    grids = {one.layers: grid(t for t in trials if t.layers == one.layers) for one in optima}
    first = best_of(grids[optima[0].layers])
    ranges = {layers: span for layers, found in grids.items() if (span := _seeds_range(found)) is not None}
    if not ranges:
        return OPEN, f"{moved}; no depth has {SEEDS} seeds of its best rate to compare a cost with"
    for layers, found in list(grids.items())[1:]:
        known = layers if layers in ranges else min(ranges, key=ranges.__getitem__)
        allowed, where = ranges[known], "" if known == layers else f" at {counted(known)}, not measured here"
        lost = cost(found, first)
        at = f"at {layers} layers the best rate of {optima[0].layers}"
        if lost is None:
            return OPEN, f"{moved}; {at} was not tried"
        if lost >= allowed:
            return OPEN, f"{moved}; {at} costs {lost:.3f} bits, seeds differ by {allowed:.3f}{where}"
    return YES, moved


def _seeds_range(found: dict[float, dict[int, float]]) -> float | None:
    """Largest less smallest loss of the first SEEDS at the best rate, bits; None from fewer."""
    best = best_of(found)
    seeds = found[best] if best is not None else {}
    losses = [seeds[seed] for seed in sorted(seeds) if math.isfinite(seeds[seed])][:SEEDS]
    return max(losses) - min(losses) if len(losses) == SEEDS else None
