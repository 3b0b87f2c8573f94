"""From a short training to one word on the long one. The thresholds are calibrated in docs/probes.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from .observed import Observed, ShortTraining
from .signals import evenness, headroom, profile

# evenness of a stack's gradient norms, smallest over largest layer's
UNEVEN = 0.1  # in the first updates: a risk, unless it evens out
HEALED = 1.5  # times its start: it does, as under ReZero, whose branches open one by one
STARVED = 1e-3  # in the last updates, if it started uneven
# the same for one layer: what it passes on to the one below, on average
FADING = 0.9  # in the first updates, for the start to be uneven because of the depth
LOST = 0.1  # in the last updates: no stack learns so, whatever its start
TIGHT = 4.0  # doublings of the activations left in fp16
LATEST = 5  # updates whose median counts as the end

STABLE, AT_RISK, DIVERGING = "stable", "at risk", "diverging"


@dataclass(frozen=True)
class Finding:
    """A reason for a verdict. kind: AT_RISK or DIVERGING; update: since when; evidence: one line with the numbers."""

    kind: str
    update: int
    evidence: str


@dataclass(frozen=True)
class Verdict:
    """kind: the worst of the findings, STABLE without any; notes: what the check could not see. str() is one line."""

    kind: str
    findings: list[Finding]
    notes: list[str]

    def __str__(self) -> str:
        if self.kind == STABLE:
            return STABLE
        first = next(finding for finding in self.findings if finding.kind == self.kind)
        where = f" at update {first.update}" if self.kind == DIVERGING else ""
        return f"{self.kind}{where}: {first.evidence}"


def judge(training: ShortTraining) -> Verdict:
    """The verdict on a short training: by its losses, the evenness of its gradients, the room it leaves in fp16."""
    findings = [
        *_not_finite(training),
        *(finding for stack in training.stacks for finding in _starved(training.observed, stack)),
        *_rising(training.observed),
        *_tight(training),
    ]
    kinds = {finding.kind for finding in findings}
    kind = DIVERGING if DIVERGING in kinds else AT_RISK if kinds else STABLE
    return Verdict(kind, findings, _notes(training))


def _not_finite(training: ShortTraining):
    broken = [o.update for o in training.observed if not math.isfinite(o.loss)]
    if training.failure or broken:
        update = broken[0] if broken else training.observed[-1].update
        yield Finding(DIVERGING, update, f"loss or gradients are not finite ({training.failure or 'loss'})")


def _starved(observed: list[Observed], stack: str):
    """The lower layers get nothing: from the start under Post-LN (Figure 3a), and once it has diverged (Figure 4d)."""
    even = [(o.update, evenness(profile(o, stack))) for o in observed[1:]]  # some methods start with zeros
    even = [(update, value) for update, value in even if math.isfinite(value)]
    if len(even) < 2 * LATEST - 1:
        return
    start, end = (median(value for _, value in part) for part in (even[:LATEST], even[-LATEST:]))
    norms = profile(observed[-1], stack) or profile(observed[0], stack)
    a_layer = 1 / max(len(norms) - 1, 1)
    fades = start < UNEVEN and start**a_layer < FADING and end < HEALED * start
    lost = end**a_layer < LOST
    if not fades and not lost:
        return
    starved = [i for i, (_, value) in enumerate(even) if value >= STARVED]  # not yet
    since = even[min(starved[-1] + 1, len(even) - 1) if starved else 0][0]
    where = f"{stack} layer {norms.index(min(norms)) + 1}"
    evidence = f"{where} gets {end:.0e} of the largest layer's gradient, {start:.0e} in the first updates"
    yield Finding(DIVERGING if lost or end < STARVED else AT_RISK, since, evidence)


def _rising(observed: list[Observed]):
    losses = [o.loss for o in observed if math.isfinite(o.loss)]
    if len(losses) < 2 * LATEST:
        return
    start, end = median(losses[:LATEST]), median(losses[-LATEST:])
    if end > start:
        yield Finding(AT_RISK, observed[-1].update, f"the loss rises, from {start:.2f} to {end:.2f} bits")


def _tight(training: ShortTraining):
    room = headroom(training.observed)
    if room is None:
        return
    if room.doublings < TIGHT:
        evidence = f"activations reach {room.activation:.0f}; fp16 ends at 65504"
        yield Finding(AT_RISK, training.observed[-1].update, f"{evidence}: train with --bf16")
    elif room.loss_scale < 1:
        yield Finding(
            AT_RISK, training.observed[-1].update, f"gradients need a loss scale of {room.loss_scale:g} in fp16"
        )


def _notes(training: ShortTraining):
    reached, peak = max(o.lr for o in training.observed), training.peak
    notes = []
    if reached < 0.5 * peak:
        notes.append(
            f"the learning rate came to {reached / peak:.1%} of its peak {peak:g}: this says nothing about the peak; "
            "--compress-warmup 20 goes there"
        )
    if math.isfinite(training.observed[-1].loss) and len(training.observed) < 2 * LATEST:
        notes.append(
            f"{len(training.observed)} updates in the time given are too few for a verdict; give more --seconds"
        )
    return notes
