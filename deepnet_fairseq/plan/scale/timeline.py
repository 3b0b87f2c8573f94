"""One update, played through: what is computed one after the other, and what is sent meanwhile.

Two lines of time: computing, and the network, which carries one thing at a time in the order of request. A step's
`gather` must have arrived before it starts; it is asked for when the step before starts (FSDP's prefetching of one
layer). What it has to `send` is asked for when it ends, and nobody waits for it but the end of the update.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A stretch of an update.

    Seconds: device: of the GPU's work; host: of Python and torch until the work is queued; gather, send: of the
    network. waits: for all that was sent before it starts (the optimiser needs every gradient).
    """

    device: float
    host: float = 0.0
    gather: float = 0.0
    send: float = 0.0
    waits: bool = False


@dataclass(frozen=True)
class Spent:
    """Seconds that an update takes.

    device: of the GPU's work; host: what the host needs on top; network: what is not hidden behind computing; sent: all
    that the network is busy.
    """

    device: float = 0.0
    host: float = 0.0
    network: float = 0.0
    sent: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of the update."""
        return self.device + self.host + self.network

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def __mul__(self, times: float) -> Spent:
        return Spent(*(times * getattr(self, name) for name in self.__dataclass_fields__))


def play(steps: Iterable[Step], asynchronous: bool = True) -> Spent:
    """Seconds of steps in order, `sent` being those the network is busy.

    asynchronous: does the host queue a step while the device still works on the one before? Then the slower of the two
    counts, else their sum.
    """
    now = free = asked = device = computing = sent = 0.0
    for step in steps:
        free = max(free, asked) + step.gather if step.gather else free
        start = max(now, free) if step.gather or step.waits else now
        seconds = max(step.device, step.host) if asynchronous else step.device + step.host
        asked, now = start, start + seconds
        free = max(free, now) + step.send if step.send else free
        device, computing, sent = device + step.device, computing + seconds, sent + step.gather + step.send
    return Spent(device, computing - device, max(now, free) - computing, sent)
