"""`deepnet check`: make the first updates of a fairseq-train run in this process, and judge the whole run.

All probes are on, and no files are left behind. docs/probes.md says how often it is right.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
import torch
from fairseq.trainer import Trainer

from ..core import archs
from ..core.probes.half_precision import LARGEST
from ..errors import UserError
from ..plugin.divergence import Diverged
from ..plugin.flags import namespace
from ..plugin.probe_record import FILE, Values, read_record
from ..plugin.trainer import batches, build_trainer, parse, refuse_others, step
from ..text_table import render
from ..threads import torch_threads, width_of

ATTEMPTS = 3  # batches for an update: in fp16 the first ones overflow until the loss scale fits
# evenness of a stack's gradient norms: smallest layer's over largest layer's
UNEVEN = 0.1  # in the first updates: a risk, unless it evens out
HEALED = 1.5  # times the start: it evens out, as under ReZero, whose branches open one by one
STARVED = 1e-3  # in the last updates, if it started uneven
# the same for one layer: mean ratio of the gradients of neighbouring layers
FADING = 0.9  # in the first updates, for the start to be uneven because of the depth
LOST = 0.1  # in the last updates: no stack learns with less, whatever its start
TIGHT = 4.0  # doublings of the activations left in fp16
LATEST = 5  # updates whose median counts as the end
ROWS, DEPTHS = 8, 6  # limits of the report's tables

STABLE, AT_RISK, DIVERGING, UNKNOWN = "stable", "at risk", "diverging", "unknown"


@dataclass(frozen=True)
class Observed:
    """Observation of one update of a check.

    update: number of updates before it; lr: its learning rate; loss: before it, bits per token, NaN if the update
    failed; tokens: its target tokens; probes[probe][address]: values as the probes define them.
    """

    update: int
    lr: float
    loss: float
    tokens: float
    probes: dict[str, Values]

    def profile(self, stack: str) -> list[float]:
        """Return the L2 gradient norm of each layer of `stack`, the first layer first; empty if the update has none."""
        norms = self.probes.get("gradient_norm", {})
        return [norms[where] for layer in range(1, len(norms) + 1) if (where := f"{stack}.{layer}") in norms]

    def evenness(self, stack: str) -> float:
        """Return the layers' smallest gradient norm over the largest: 1 if all are alike, 0 if some get nothing.

        It is NaN without layers, and for norms that are not finite.
        """
        norms = self.profile(stack)
        if not norms or not all(map(math.isfinite, norms)):
            return math.nan
        return min(norms) / max(norms) if max(norms) > 0 else 0.0

    def ln_input(self, kind: str) -> float:
        """Return the mean norm of the inputs of one kind of branch's LayerNorms, over all stacks; NaN if there is none.

        kind: "ffn" or "self_attn".
        """
        values = [v for a, v in self.probes.get("ln_input", {}).items() if a.split(".")[2:] == [kind]]
        return fmean(values) if values else math.nan


class Headroom(NamedTuple):
    """Headroom of a run in fp16.

    activation: largest absolute value in the forward passes; doublings: how often the activations can double before
    fp16 overflows; loss_scale: the largest power of two that keeps the gradients of the weights finite.
    """

    activation: float
    doublings: float
    loss_scale: float


@dataclass(frozen=True)
class ShortTraining:
    """Result of a short training.

    layers: N and M, 0 for a stack that the model does not have; peak: of the learning rate; failure: the trainer's
    error, if any; seconds: without set-up; longer: the flag with which a check reaches the peak learning rate.
    """

    method: str
    layers: tuple[int, int]
    parameters: int
    peak: float
    observed: list[Observed]
    failure: str | None
    seconds: float
    longer: str = "--compress-warmup 20"

    @property
    def stacks(self) -> dict[str, int]:
        """Return the number of layers of each stack that the model has."""
        layers = zip(("encoder", "decoder"), self.layers, strict=True)
        return {stack: count for stack, count in layers if count}

    @property
    def too_short(self) -> bool:
        """Tell whether too few updates were made for a verdict of STABLE."""
        return len(self.observed) < 2 * LATEST

    @property
    def headroom(self) -> Headroom | None:
        """Smallest headroom over all updates; None if no update has finite numbers."""
        rows = [(o.probes["half_precision"], o.tokens) for o in self.observed if "half_precision" in o.probes]
        rows = [(row, tokens) for row, tokens in rows if all(map(math.isfinite, row.values())) and tokens]
        if not rows:
            return None
        activation = max(value for row, _ in rows for name, value in row.items() if name != "gradient")
        gradient = max(row["gradient"] * tokens for row, tokens in rows)  # of the summed loss
        scale = 2.0 ** math.floor(math.log2(LARGEST / gradient))
        return Headroom(activation, math.log2(LARGEST / activation), scale)


def train_briefly(
    flags: list[str], updates: int, warmup: int | None, seconds: float, progress: Callable[[int, float], None]
) -> ShortTraining:
    """Train as `fairseq-train FLAGS` would, in one process, for `updates` or until `seconds` are over.

    warmup: compress the learning rate's warm-up to so many updates; progress(update, loss) after each, loss in bits per
    token. Nothing is left on the disk. Raises a UserError for flags that this package refuses, for another package's
    architecture, and if no update could be made; a flag that fairseq-train refuses ends the program, as there.
    """
    with tempfile.TemporaryDirectory() as folder:
        args = _adapt(parse([*flags, "--no-save", "--save-dir", folder]), warmup)
        if args.cpu or not torch.cuda.is_available():
            torch_threads.use(width_of(namespace(**vars(args))))
        trainer = build_trainer(args)
        failure, observed = None, []
        start = time.monotonic()
        try:
            for samples in itertools.islice(batches(trainer), ATTEMPTS * updates):
                if seen := _step(trainer, samples):
                    observed.append(seen)
                    progress(seen.update, seen.loss)
                if len(observed) == updates or time.monotonic() - start > seconds:
                    break
        except Diverged as error:
            failure = error.kind
            observed.append(Observed(trainer.get_num_updates(), trainer.get_lr(), math.nan, 0, {}))
        elapsed = time.monotonic() - start
        path = Path(folder) / FILE
        rows = read_record(path).rows if path.exists() else {}
    if not observed:
        raise UserError("no update was made: every batch overflowed, or was too large for the device's memory")
    cfg = namespace(**vars(args))
    more = "more --seconds" if len(observed) < updates else f"--updates {2 * (warmup or 0)}"
    return ShortTraining(
        cfg.method,
        archs.depths(cfg),
        sum(p.numel() for p in trainer.get_model().parameters()),
        max(args.lr),
        [replace(seen, probes=rows.get(seen.update, {})) for seen in observed],
        failure,
        elapsed,
        ShortTraining.longer if warmup is None else more,
    )


def _adapt(args: argparse.Namespace, warmup: int | None) -> argparse.Namespace:
    """Turn on all probes and compress the warm-up in a run's args; UserError for a run that a check cannot watch."""
    refuse_others(args, "the check")
    args.deepnet_probe, args.probe_interval = "all", 1
    if warmup is not None:
        if not getattr(args, "warmup_updates", 0):
            raise UserError("--compress-warmup: this schedule has no warm-up; drop the flag")
        args.warmup_updates = min(warmup, args.warmup_updates)
    return args


def _step(trainer: Trainer, samples: list) -> Observed | None:
    """Make one update, to be completed with its probes; None if it overflowed and only the loss scale changed."""
    update, lr = trainer.get_num_updates(), trainer.get_lr()
    log = step(trainer, samples)
    tokens = sum(sample["ntokens"] for sample in samples if sample)
    return None if log is None else Observed(update, lr, float(log["loss"]), tokens, {})


@dataclass(frozen=True)
class Finding:
    """Reason for a verdict. kind: AT_RISK or DIVERGING; update: the first one; evidence: one line with the numbers."""

    kind: str
    update: int
    evidence: str


@dataclass(frozen=True)
class Verdict:
    """Verdict, one line as str().

    kind: the worst of the findings; without any STABLE, or UNKNOWN after fewer than 10 updates. notes: its limits.
    """

    kind: str
    findings: list[Finding]
    notes: list[str]

    def __str__(self) -> str:
        if not self.findings:
            return self.kind
        first = next(finding for finding in self.findings if finding.kind == self.kind)
        where = f" at update {first.update}" if self.kind == DIVERGING else ""
        return f"{self.kind}{where}: {first.evidence}"


def judge(short_training: ShortTraining) -> Verdict:
    """Judge a short training by its losses, the evenness of its gradients, and its headroom in fp16."""
    observed, findings = short_training.observed, []
    last = observed[-1].update
    broken = [o.update for o in observed if not math.isfinite(o.loss)]
    if short_training.failure or broken:
        evidence = f"loss or gradients are not finite ({short_training.failure or 'loss'})"
        findings.append(Finding(DIVERGING, broken[0] if broken else last, evidence))
    findings += filter(None, (_starved(observed, stack) for stack in short_training.stacks))
    losses = [o.loss for o in observed if math.isfinite(o.loss)]
    start, end = (median(part) if part else math.nan for part in (losses[:LATEST], losses[-LATEST:]))
    if len(losses) >= 2 * LATEST and end > start:
        findings.append(Finding(AT_RISK, last, f"the loss rises, from {start:.2f} to {end:.2f} bits"))
    room = short_training.headroom
    if room and room.doublings < TIGHT:
        evidence = f"activations reach {room.activation:.0f}; fp16 ends at 65504: train with --bf16"
        findings.append(Finding(AT_RISK, last, evidence))
    elif room and room.loss_scale < 1:
        findings.append(Finding(AT_RISK, last, f"gradients need a loss scale of {room.loss_scale:g} in fp16"))
    kinds = {finding.kind for finding in findings}
    seen = UNKNOWN if short_training.too_short else STABLE
    kind = DIVERGING if DIVERGING in kinds else AT_RISK if kinds else seen
    return Verdict(kind, findings, _notes(short_training))


def _starved(observed: list[Observed], stack: str) -> Finding | None:
    """Find vanishing gradients in lower layers: from the start under Post-LN (Figure 3a), or after divergence (4d)."""
    even = [(o.update, o.evenness(stack)) for o in observed[1:]]  # some methods start with gradients of zero
    even = [(update, value) for update, value in even if math.isfinite(value)]
    if len(even) < 2 * LATEST - 1:
        return None
    start, end = (median(value for _, value in part) for part in (even[:LATEST], even[-LATEST:]))
    norms = observed[-1].profile(stack) or observed[0].profile(stack)
    a_layer = 1 / max(len(norms) - 1, 1)
    fades = start < UNEVEN and start**a_layer < FADING and end < HEALED * start
    lost = end**a_layer < LOST
    if not fades and not lost:
        return None
    starved = [i for i, (_, value) in enumerate(even) if value >= STARVED]  # updates at which it was not starved yet
    since = even[min(starved[-1] + 1, len(even) - 1) if starved else 0][0]
    where = f"{stack} layer {norms.index(min(norms)) + 1}"
    evidence = f"{where} gets {end:.0e} of the largest layer's gradient, {start:.0e} in the first updates"
    return Finding(DIVERGING if lost or end < STARVED else AT_RISK, since, evidence)


def _notes(short_training: ShortTraining) -> list[str]:
    reached, peak = max(o.lr for o in short_training.observed), short_training.peak
    notes = []
    if reached < 0.5 * peak:
        notes.append(
            f"the learning rate came to {reached / peak:.1%} of its peak {peak:g}: this says nothing about the peak; "
            f"{short_training.longer} goes there"
        )
    if math.isfinite(short_training.observed[-1].loss) and short_training.too_short:
        notes.append(
            f"only {len(short_training.observed)} updates in the time given, too few for a verdict; give more --seconds"
        )
    return notes


def _evenly(count: int, wanted: int) -> list[int]:
    """Choose at most `wanted` of range(count), evenly, the first and the last included."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, wanted))})


def _progress(short_training: ShortTraining) -> str:
    """Tabulate the four quantities of the paper at some of the updates, as the learning rate rises."""
    stacks = list(short_training.stacks)
    rows = [
        ["update", "lr", "loss", "model update", "LN input ffn", "self-attn", *(f"grad {stack}" for stack in stacks)]
    ]
    for index in _evenly(len(short_training.observed), ROWS):
        observed = short_training.observed[index]
        moved = observed.probes.get("model_update", {}).get(stacks[-1], math.nan)
        sizes = [f"{observed.ln_input(kind):.1f}" for kind in ("ffn", "self_attn")]
        even = [f"{observed.evenness(stack):.0e}" for stack in stacks]
        rows.append([str(observed.update), f"{observed.lr:.1e}", f"{observed.loss:.2f}", f"{moved:.2f}", *sizes, *even])
    return render(rows)


def _profile(short_training: ShortTraining) -> str:
    """Tabulate the gradient norms of some layers, before the first update and at the last."""
    rows = [["layer", "gradient at first", "at last"]]
    for stack in short_training.stacks:
        before, after = (short_training.observed[index].profile(stack) for index in (0, -1))
        for layer in _evenly(len(before), DEPTHS):
            rows.append([f"{stack} {layer + 1}", f"{before[layer]:.1e}", f"{after[layer]:.1e}" if after else "-"])
    return render(rows)


def text(short_training: ShortTraining) -> str:
    """Return the whole report, which ends with the verdict."""
    verdict = judge(short_training)
    room = short_training.headroom
    half = "not measured: no update had finite numbers"
    if room:
        half = (
            f"activations up to {room.activation:.0f} ({room.doublings:.1f} doublings below 65504); gradients of the "
            f"weights stay finite up to a loss scale of {room.loss_scale:g}"
        )
    depth = "-".join(f"{count}L" for count in short_training.stacks.values())
    lines = [
        f"{depth} {short_training.method}, {short_training.parameters:,} parameters, "
        f"{len(short_training.observed)} updates in {short_training.seconds:.0f} s",
        "",
        _progress(short_training),
        "",
        "loss: bits per token; model update: ||F(x, theta_i) - F(x, theta_0)|| per token; grad: smallest over largest",
        "gradient norm of the stack's layers",
        "",
        _profile(short_training),
        "",
        f"fp16: {half}",
        "",
        f"verdict: {verdict}",
        *(f"  also {other.kind}: {other.evidence}" for other in verdict.findings if other.evidence not in str(verdict)),
        *(f"  note: {note}" for note in verdict.notes),
    ]
    return "\n".join(lines)


def as_dict(short_training: ShortTraining) -> dict:
    """Return verdict, findings, and every update's numbers, for --json."""
    verdict = judge(short_training)
    return {
        "verdict": verdict.kind,
        "findings": [vars(finding) for finding in verdict.findings],
        "notes": verdict.notes,
        "method": short_training.method,
        "layers": short_training.layers,
        "parameters": short_training.parameters,
        "updates": [
            {
                "update": o.update,
                "lr": o.lr,
                "loss": _number(o.loss),
                "probes": {name: {a: _number(v) for a, v in values.items()} for name, values in o.probes.items()},
            }
            for o in short_training.observed
        ],
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no NaN and infinity
