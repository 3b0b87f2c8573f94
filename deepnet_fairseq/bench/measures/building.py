"""Time from a config to a model that could make its first step."""

from __future__ import annotations

from ..candidate import Candidate
from ..contender import Contender
from .trial import Trial


class Unbuilt:
    """A candidate that is built anew in each repeat."""

    def __init__(self, candidate: Candidate):
        self.candidate, self.size = candidate, 0

    def parameters(self) -> int:
        return self.size

    def close(self) -> None:
        """Nothing is held."""


class Building(Trial):
    """Quantities: seconds of the parts of a contender's making."""

    name = "build"
    alone = True

    def enter(self, candidate: Candidate) -> Unbuilt:
        return Unbuilt(candidate)

    def run(self, contender: Unbuilt, repeat: int) -> dict[str, float]:
        built = Contender(contender.candidate, self.shape, self.settings)
        contender.size = built.parameters()
        built.close()
        return built.seconds
