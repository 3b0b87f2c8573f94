"""A check in words and tables."""

from __future__ import annotations

import math

from ..probes.record import Values
from ..text_table import render
from .observed import ShortTraining
from .signals import evenness, headroom, ln_input, profile
from .verdict import Verdict, judge

ROWS, DEPTHS = 8, 6


def _evenly(count: int, wanted: int) -> list[int]:
    """At most `wanted` of range(count), first and last among them."""
    if count <= wanted:
        return list(range(count))
    return sorted({round(i * (count - 1) / (wanted - 1)) for i in range(wanted)})


def progress_table(training: ShortTraining) -> str:
    """A row for some of the updates: what the four quantities of the paper do as the learning rate rises."""
    header = ["update", "lr", "loss", "model update", "LN input ffn", "self-attn"]
    header += [f"grad {stack}" for stack in training.stacks]
    rows, last = [header], list(training.stacks)[-1]
    for index in _evenly(len(training.observed), ROWS):
        seen = training.observed[index]
        moved = seen.probes.get("model_update", {}).get(last, float("nan"))
        sizes = [f"{ln_input(seen, kind):.1f}" for kind in ("ffn", "self_attn")]
        even = [f"{evenness(profile(seen, stack)):.0e}" for stack in training.stacks]
        rows.append([str(seen.update), f"{seen.lr:.1e}", f"{seen.loss:.2f}", f"{moved:.2f}", *sizes, *even])
    return render(rows)


def profile_table(training: ShortTraining) -> str:
    """Gradient norm of some layers, before the first update and at the last."""
    rows = [["layer", "gradient at first", "at last"]]
    first, last = training.observed[0], training.observed[-1]
    for stack in training.stacks:
        before, after = profile(first, stack), profile(last, stack)
        for index in _evenly(len(before), DEPTHS):
            at_last = f"{after[index]:.1e}" if after else "-"
            rows.append([f"{stack} {index + 1}", f"{before[index]:.1e}", at_last])
    return render(rows)


def text(training: ShortTraining) -> str:
    """The whole report; ends with the verdict."""
    verdict = judge(training)
    room = headroom(training.observed)
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
        *_closing(verdict),
    ]
    return "\n".join(lines)


def _closing(verdict: Verdict) -> list[str]:
    others = [f for f in verdict.findings if f.evidence not in str(verdict)]
    return [
        f"verdict: {verdict}",
        *(f"  also {finding.kind}: {finding.evidence}" for finding in others),
        *(f"  note: {note}" for note in verdict.notes),
    ]


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
