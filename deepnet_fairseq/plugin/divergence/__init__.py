"""End a training that diverges or is stuck with one line and a status of its own.

DeepTrainer notices numbers that are not finite and search.py finds the first layer that gives them; stuck.py compares
validation losses with those of guessing. docs/troubleshooting.md.
"""

from __future__ import annotations

STATUS = 3  # of fairseq-train, as of `deepnet check`: diverged
LOSS, GRADIENTS = "loss not finite", "gradients not finite"
FLOOR, WEIGHTS = "loss scale at its floor", "weights not finite"


class Diverged(FloatingPointError):
    """Raised on every rank in the same update, as losses and gradients are sums over all ranks.

    update: the one that could not be made, counted from 1; kind: LOSS, GRADIENTS, FLOOR or WEIGHTS; samples: the
    update's batches.
    """

    def __init__(self, update: int, kind: str, samples: list):
        super().__init__(kind)
        self.update, self.kind, self.samples = update, kind, samples
