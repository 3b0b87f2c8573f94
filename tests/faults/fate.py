"""What befalls a life, and when: drawn at random, each at a moment that the log tells."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from .log import SAVES, START, UPDATE, VALIDATED, VALIDATES, Log


@dataclass(frozen=True)
class Event:
    """`act` (kill | fill | empty) `delay` seconds after `text` was said `times` times more; ranks: whom it kills."""

    act: str
    text: str = ""
    times: int = 1
    delay: float = 0.0
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Durations:
    """Seconds that the undisturbed training took."""

    start: float
    update: float
    validation: float
    saving: float

    @classmethod
    def of(cls, log: Log, started: float) -> Durations:
        start = next(moment for moment, line in log.lines if START in line) - started
        return cls(
            start, log.seconds(UPDATE, UPDATE), log.seconds(VALIDATES, VALIDATED), log.seconds(SAVES, log.end_of_save)
        )  # fmt: skip


def draw(chance: random.Random, durations: Durations, processes: int, full: bool, share: float) -> Iterator[Event]:
    """A life that ends by SIGKILL; for a `share` of lives the disk fills up. full: is it so at birth already?"""
    fills = not full and chance.random() < share
    if fills:
        yield Event("fill", SAVES if chance.random() < 0.5 else UPDATE, chance.randint(1, 2), delay=0.0)
    if full or (fills and chance.random() < 0.6):  # else it dies while the disk is full
        yield Event("empty", SAVES, chance.randint(1, 2), chance.uniform(0, durations.saving))
    ranks = tuple(range(processes))
    if processes > 1 and chance.random() < 0.6:
        ranks = (chance.randrange(processes),)
    where = chance.random()
    if where < 0.4:
        yield Event("kill", SAVES, chance.randint(1, 2), chance.uniform(0, durations.saving), ranks)
    elif where < 0.5:
        yield Event("kill", VALIDATES, chance.randint(1, 2), chance.uniform(0, durations.validation), ranks)
    elif where < 0.9:
        yield Event("kill", UPDATE, chance.randint(1, 6), chance.uniform(0, durations.update), ranks)
    else:
        yield Event("kill", "", 1, chance.uniform(0, durations.start), ranks)
