"""A measure: what is made of a candidate, what is repeated with it, and which numbers that gives."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..candidate import Candidate
from ..contender import Contender
from ..settings import Settings, Shape


class Trial(ABC):
    """What one measure does with each candidate; to add one, derive from this, name it in bench/measure.py.

    name: of the measure; warmup: repeats before the first that counts; alone: is memory held in a run only?
    """

    name: str
    warmup = 1
    alone = False

    def __init__(self, shape: Shape, settings: Settings):
        self.shape, self.settings = shape, settings

    def conditions(self) -> list[dict]:
        """Each has cells of its own, as {"beam": 5}."""
        return [{}]

    def enter(self, candidate: Candidate) -> Contender:
        """Builds the candidate's model; whoever asks for it closes it."""
        return Contender(candidate, self.shape, self.settings)

    @abstractmethod
    def run(self, contender: Contender, repeat: int, **condition) -> dict[str, float] | None:
        """Numbers by quantity; None for a repeat that does not count. Warm-up has the repeats below 0."""

    def facts(self, contender: Contender, **condition) -> dict:
        """What is the same in all repeats; "tokens" are compared between candidates."""
        return {"parameters": contender.parameters()}
