"""A training whose numbers end: stopped with a report and a status of its own, or set back and slowed down.

watched_trainer.py notices, search.py finds where, diagnosis.py writes, advice.py says what to try, rollback.py sets
back. docs/troubleshooting.md.
"""

from __future__ import annotations

from dataclasses import dataclass

STATUS = 3  # of fairseq-train, as of `deepnet check`: diverged
LOSS, GRADIENTS = "loss not finite", "gradients not finite"
FLOOR, WEIGHTS = "loss scale at its floor", "weights not finite"


@dataclass(frozen=True)
class Stop:
    """Why a training cannot go on.

    update: the one that could not be made, counted from 1; kind: LOSS, GRADIENTS, FLOOR or WEIGHTS; reason: what was
    noticed, in words; samples: what it trained on.
    """

    update: int
    kind: str
    reason: str
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
