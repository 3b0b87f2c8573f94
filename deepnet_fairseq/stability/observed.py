"""What a check saw of a training."""

from __future__ import annotations

from dataclasses import dataclass

from ..probes.record import Values


@dataclass(frozen=True)
class Observed:
    """One update of a check.

    update: how many were made before it; lr: its learning rate; loss: before it, bits per token, NaN if the update
    failed; tokens: its target tokens; probes[probe][address]: values as the probes define them.
    """

    update: int
    lr: float
    loss: float
    tokens: float
    probes: dict[str, Values]


@dataclass(frozen=True)
class ShortTraining:
    """What a check saw.

    layers: N and M, 0 for a stack that the model does not have; peak: of the learning rate; failure: why the trainer
    gave up, if so; seconds: without set-up.
    """

    method: str
    layers: tuple[int, int]
    parameters: int
    peak: float
    observed: list[Observed]
    failure: str | None
    seconds: float

    @property
    def stacks(self) -> dict[str, int]:
        """Layers of those that the model has."""
        layers = zip(("encoder", "decoder"), self.layers, strict=True)
        return {stack: count for stack, count in layers if count}
