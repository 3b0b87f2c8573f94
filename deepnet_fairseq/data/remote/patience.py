"""How long a server is waited for, and how often it is asked again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from .progress import say


class Unavailable(Exception):
    """An address does not give the file; says why."""


class Interrupted(Unavailable):
    """For now; asking again may help, after `wait` seconds where the server says so (Retry-After)."""

    def __init__(self, reason: str, wait: float = 0.0):
        super().__init__(reason)
        self.wait = wait


@dataclass(frozen=True)
class Patience:
    """Seconds, but for `attempts`: how often in a row without any progress."""

    connect: float = 15.0
    read: float = 60.0
    attempts: int = 6
    first_wait: float = 1.0
    longest_wait: float = 60.0
    longest_asked: float = 600.0


PATIENCE = Patience()


def persist(what: str, attempt: Callable, reached: Callable[[], int]):
    """attempt(), again and again while it is Interrupted; Unavailable after too many attempts in a row in vain.

    reached: bytes that have ever been here at once; an attempt that adds to them was not in vain, so that a slow,
    flaky line ends in a whole file, and a server that starts over each time does not keep us for ever.
    """
    failures, best = 0, reached()
    while True:
        try:
            return attempt()
        except Interrupted as error:
            interruption = error
        failures = 0 if reached() > best else failures + 1
        best = max(best, reached())
        if failures >= PATIENCE.attempts:
            raise Unavailable(f"{interruption}, {failures} times in a row")
        if interruption.wait > PATIENCE.longest_asked:
            raise Unavailable(f"{interruption}, asks to wait {interruption.wait:.0f} s")
        longest = min(PATIENCE.first_wait * 2 ** max(failures - 1, 0), PATIENCE.longest_wait)
        wait = max(interruption.wait, longest * random.uniform(0.5, 1))
        say(f"{what}: {interruption}; again in {wait:.1f} s")
        time.sleep(wait)
