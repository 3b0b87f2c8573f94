"""That a training has diverged, as an exception."""

from __future__ import annotations

from dataclasses import dataclass

STATUS = 3  # of fairseq-train, as of `deepnet check`: diverged

LOSS = "loss not finite"
GRADIENTS = "gradients not finite"
FLOOR = "loss scale at its floor"
WEIGHTS = "weights not finite"


@dataclass(frozen=True)
class Stop:
    """Why a training cannot go on.

    update: the one that could not be made, counted from 1; kind: LOSS, GRADIENTS, FLOOR or WEIGHTS; reason: what was
    noticed, in words; made: was the update made all the same, so that the weights are no longer those that it started
    from? samples: what it trained on.
    """

    update: int
    kind: str
    reason: str
    made: bool
    samples: list

    @property
    def weights(self) -> int:
        """How many updates the weights had had that it went wrong with."""
        return self.update - (self.kind != WEIGHTS)


class Diverged(FloatingPointError):
    """Raised on every rank in the same update, as losses and gradients are sums over all ranks."""

    def __init__(self, stop: Stop):
        super().__init__(stop.reason)
        self.stop = stop
