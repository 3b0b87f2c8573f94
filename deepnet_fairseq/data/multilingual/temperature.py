"""Sampling over languages by temperature: small ones are raised towards large ones, none is drawn out of proportion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random

from ...errors import UserError


def shares(sizes: dict[str, int], temperature: float) -> dict[str, float]:
    """p_l proportional to (n_l / sum of n) ** (1 / T), as in Arivazhagan et al. (2019); T = 1 keeps the proportions.

    sizes: language -> sentences; the shares sum to 1. UserError unless the temperature T is above 0.
    """
    if not temperature > 0:
        raise UserError(f"--temperature {temperature}: must be above 0; 1 keeps the proportions, M2M-100 took 5")
    total = sum(sizes.values())
    weights = {name: (size / total) ** (1 / temperature) for name, size in sizes.items()}
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def sample(lines: Iterable[str], count: int, wanted: int, rng: Random) -> Iterator[str]:
    """`wanted` of the `count` lines, in one pass and in their order.

    Each line comes wanted // count times; those that come once more are a random sample without replacement (Knuth,
    The Art of Computer Programming, vol. 2, algorithm S), so that the share is met to the line.
    """
    copies, left = divmod(wanted, count)
    for position, line in enumerate(lines):
        once_more = rng.random() * (count - position) < left
        left -= once_more
        for _ in range(copies + once_more):
            yield line
