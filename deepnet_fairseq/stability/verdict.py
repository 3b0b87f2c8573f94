"""From a short training to one word on the long one, and the page around it.

The thresholds are calibrated in docs/probes.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

import numpy as np

from ..probes.record import Values
from ..text_table import render
from .short_training import Observed, ShortTraining

# evenness of a stack's gradient norms, smallest over largest layer's
UNEVEN = 0.1  # in the first updates: a risk, unless it evens out
HEALED = 1.5  # times its start: it does, as under ReZero, whose branches open one by one
STARVED = 1e-3  # in the last updates, if it started uneven
# the same for one layer: what it passes on to the one below, on average
FADING = 0.9  # in the first updates, for the start to be uneven because of the depth
LOST = 0.1  # in the last updates: no stack learns so, whatever its start
TIGHT = 4.0  # doublings of the activations left in fp16
LATEST = 5  # updates whose median counts as the end
ROWS, DEPTHS = 8, 6  # at most, of the page's tables

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
    even = [(o.update, o.evenness(stack)) for o in observed[1:]]  # some methods start with zeros
    even = [(update, value) for update, value in even if math.isfinite(value)]
    if len(even) < 2 * LATEST - 1:
        return
    start, end = (median(value for _, value in part) for part in (even[:LATEST], even[-LATEST:]))
    norms = observed[-1].profile(stack) or observed[0].profile(stack)
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
    room = training.headroom
    if room is None:
        return
    if room.doublings < TIGHT:
        evidence = f"activations reach {room.activation:.0f}; fp16 ends at 65504"
        yield Finding(AT_RISK, training.observed[-1].update, f"{evidence}: train with --bf16")
    elif room.loss_scale < 1:
        evidence = f"gradients need a loss scale of {room.loss_scale:g} in fp16"
        yield Finding(AT_RISK, training.observed[-1].update, evidence)


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


def _evenly(count: int, wanted: int) -> list[int]:
    """At most `wanted` of range(count), first and last among them."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, wanted))})


def progress_table(training: ShortTraining) -> str:
    """A row for some of the updates: what the four quantities of the paper do as the learning rate rises."""
    header = ["update", "lr", "loss", "model update", "LN input ffn", "self-attn"]
    header += [f"grad {stack}" for stack in training.stacks]
    rows, last = [header], list(training.stacks)[-1]
    for index in _evenly(len(training.observed), ROWS):
        seen = training.observed[index]
        moved = seen.probes.get("model_update", {}).get(last, float("nan"))
        sizes = [f"{seen.ln_input(kind):.1f}" for kind in ("ffn", "self_attn")]
        even = [f"{seen.evenness(stack):.0e}" for stack in training.stacks]
        rows.append([str(seen.update), f"{seen.lr:.1e}", f"{seen.loss:.2f}", f"{moved:.2f}", *sizes, *even])
    return render(rows)


def profile_table(training: ShortTraining) -> str:
    """Gradient norm of some layers, before the first update and at the last."""
    rows = [["layer", "gradient at first", "at last"]]
    first, last = training.observed[0], training.observed[-1]
    for stack in training.stacks:
        before, after = first.profile(stack), last.profile(stack)
        for index in _evenly(len(before), DEPTHS):
            at_last = f"{after[index]:.1e}" if after else "-"
            rows.append([f"{stack} {index + 1}", f"{before[index]:.1e}", at_last])
    return render(rows)


def text(training: ShortTraining) -> str:
    """The whole report; ends with the verdict."""
    verdict = judge(training)
    room = training.headroom
    half = "not measured: no update had finite numbers"
    if room:
        half = (
            f"activations up to {room.activation:.0f} ({room.doublings:.1f} doublings below 65504); gradients of the "
            f"weights stay finite up to a loss scale of {room.loss_scale:g}"
        )
    depth = "-".join(f"{count}L" for count in training.stacks.values())
    lines = [
        f"{depth} {training.method}, {training.parameters:,} parameters, "
        f"{len(training.observed)} updates in {training.seconds:.0f} s",
        "",
        progress_table(training),
        "",
        "loss: bits per token; model update: ||F(x, theta_i) - F(x, theta_0)|| per token; grad: smallest over largest",
        "gradient norm of the stack's layers",
        "",
        profile_table(training),
        "",
        f"fp16: {half}",
        "",
        f"verdict: {verdict}",
        *(f"  also {other.kind}: {other.evidence}" for other in verdict.findings if other.evidence not in str(verdict)),
        *(f"  note: {note}" for note in verdict.notes),
    ]
    return "\n".join(lines)


def as_dict(training: ShortTraining) -> dict:
    """For --json: verdict, findings, and every update's numbers."""
    verdict = judge(training)
    return {
        "verdict": verdict.kind,
        "findings": [vars(finding) for finding in verdict.findings],
        "notes": verdict.notes,
        "method": training.method,
        "layers": training.layers,
        "parameters": training.parameters,
        "updates": [
            {"update": o.update, "lr": o.lr, "loss": _number(o.loss), "probes": _numbers(o.probes)}
            for o in training.observed
        ],
    }


def _numbers(probes: dict[str, Values]) -> dict[str, dict[str, float | None]]:
    return {probe: {where: _number(value) for where, value in found.items()} for probe, found in probes.items()}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no others
