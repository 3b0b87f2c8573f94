"""`deepnet check`: make the first updates of a fairseq-train run in this process, and judge the whole run.

All probes (core/probes) are on, and no files are left behind. docs/probes.md says how often the verdict is right.

The gradient profile of a stack is the list of L2 norms of the gradients of each layer's parameters. Its evenness is the
smallest of these norms divided by the largest. An address names a place in the model: "encoder" a stack, "encoder.3" a
layer, "encoder.3.ffn" a branch.
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
from ..core.probes.half_precision import LARGEST_FP16
from ..errors import UserError
from ..plugin.divergence import Diverged
from ..plugin.flags import namespace
from ..plugin.probe_record import FILE, Values, read_record
from ..plugin.trainer import batches_by_update, build_trainer, make_update, parse_training_flags, refuse_other_trainings
from ..text_table import render
from ..threads import torch_threads, width_of
from ..wording import counted

ATTEMPTS = 3  # batches that may be taken for each update: in fp16 the first ones overflow until the loss scale fits
WINDOW = 5  # updates at the start, and as many at the end, whose medians are compared

# Thresholds, set on 81 trainings of the quickstart's language; results/check/README.md has how often they are right.
# Evenness of a stack:
UNEVEN = 0.1  # below this at the start is a risk, unless it recovers
HEALED = 1.5  # it recovers if the end is this many times the start, as under ReZero, whose branches open one by one
VANISHED = 1e-3  # below this at the end is divergence, if the start was uneven
# Ratio of the gradient norms of neighbouring layers: their geometric mean, evenness ** (1 / (layers - 1)).
FADING = 0.9  # an uneven stack that is not below this at the start is so by its depth alone, which is no risk
LOST = 0.1  # below this at the end no stack learns, whatever its start
FEW_DOUBLINGS = 4.0  # of the activations until fp16 overflows; fewer are a risk

PROGRESS_ROWS = 8  # most updates in the report's first table
LAYERS_SHOWN = 6  # most layers of a stack in its second table

STABLE, AT_RISK, DIVERGING, UNKNOWN = "stable", "at risk", "diverging", "unknown"


@dataclass(frozen=True)
class Observed:
    """Observation of one update.

    update: number of updates before it; lr: its learning rate; loss: of its batches, before the update, in bits per
    token, NaN if the update failed; tokens: number of its target tokens; probes: name of a probe -> {address: value},
    as core/probes defines them; {} if none were recorded, as where the update failed before its gradients were there.
    """

    update: int
    lr: float
    loss: float
    tokens: float
    probes: dict[str, Values]

    def profile(self, stack: str) -> list[float]:
        """Return the gradient profile of `stack`, the first layer first; [] if the update has none.

        stack: "encoder" or "decoder".
        """
        norms = self.probes.get("gradient_norm", {})  # address -> norm, of layers and of other parts of the model
        most_layers = len(norms)  # a stack has at most as many as there are norms
        addresses = [f"{stack}.{layer}" for layer in range(1, most_layers + 1)]
        return [norms[address] for address in addresses if address in norms]

    def evenness(self, stack: str) -> float:
        """Return the smallest gradient norm of the stack's layers divided by the largest, from 0 to 1.

        It is 0 if a layer gets no gradient, and NaN without layers and for norms that are not finite.
        """
        norms = self.profile(stack)
        if not norms or not all(map(math.isfinite, norms)):
            return math.nan
        return min(norms) / max(norms) if max(norms) > 0 else 0.0

    def ln_input(self, kind: str) -> float:
        """Return the mean norm of the inputs of all LayerNorms of one kind of branch; NaN if there is none.

        kind: "ffn" or "self_attn". The mean is over the layers of all stacks.
        """
        values = []
        for address, value in self.probes.get("ln_input", {}).items():
            branch = address.split(".")[2:]  # of an address STACK.LAYER.KIND
            if branch == [kind]:
                values.append(value)
        return fmean(values) if values else math.nan


class Headroom(NamedTuple):
    """How far the numbers of a training are from the largest number of fp16.

    activation: largest absolute value in the forward passes; doublings: how often the activations can double before
    fp16 overflows; loss_scale: the largest power of two by which the loss can be multiplied before a gradient of a
    weight overflows in fp16.
    """

    activation: float
    doublings: float
    loss_scale: float


@dataclass(frozen=True)
class ShortTraining:
    """Result of a short training.

    method: the model's; layers: numbers of layers of encoder and decoder, 0 for a stack that the model does not have;
    parameters: number of the model's; peak: the peak learning rate of the whole training; observed: the updates in
    order; failure: Diverged.kind if the training diverged, in the last of these updates, else None; seconds: of all
    updates, without set-up; longer: what to give `deepnet check` so that its updates reach the peak learning rate.
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
        """Return {"encoder": number of layers, "decoder": number of layers} without a stack that the model lacks."""
        encoder, decoder = self.layers
        layers = {"encoder": encoder, "decoder": decoder}
        return {stack: count for stack, count in layers.items() if count}

    @property
    def too_short(self) -> bool:
        """Tell whether there are fewer updates than the comparison of the first WINDOW with the last WINDOW needs."""
        return len(self.observed) < 2 * WINDOW

    @property
    def headroom(self) -> Headroom | None:
        """Smallest headroom over all updates; None without finite numbers, or if all activations or gradients are zero.

        The probe half_precision has the largest absolute value of the activations in each part of the model, and as
        "gradient" that of the gradients of the mean loss. fp16 has to hold those of the loss summed over tokens.
        """
        activations = []
        gradients = []
        for observed in self.observed:
            largest = observed.probes.get("half_precision")
            if largest is None or not observed.tokens or not all(map(math.isfinite, largest.values())):
                continue
            activations += [value for name, value in largest.items() if name != "gradient"]
            gradients.append(largest["gradient"] * observed.tokens)
        if not gradients or not max(gradients) or not max(activations):
            return None

        activation = max(activations)
        doublings = math.log2(LARGEST_FP16 / activation)
        loss_scale = 2.0 ** math.floor(math.log2(LARGEST_FP16 / max(gradients)))
        return Headroom(activation, doublings, loss_scale)


def train_briefly(
    flags: list[str], updates: int, warmup: int | None, seconds: float, progress: Callable[[int, float], None]
) -> ShortTraining:
    """Train as `fairseq-train FLAGS` would, in one process, for so many updates, or less far.

    The training ends earlier once `seconds` are over, if it diverges, or if too many batches give no update (ATTEMPTS).

    flags: DATA and flags of fairseq-train; updates: number of updates to make; warmup: number of updates to which the
    learning rate's warm-up is compressed, None to leave it; progress: called with the number of the update and its loss
    in bits per token after each update. Nothing is left on the disk. Raises a UserError for flags that this package
    refuses, for another package's architecture, and if no update could be made; a flag that fairseq-train refuses ends
    the program, as there.
    """
    with tempfile.TemporaryDirectory() as folder:
        args = parse_training_flags([*flags, "--no-save", "--save-dir", folder])
        _set_up_check(args, warmup)
        if args.cpu or not torch.cuda.is_available():
            torch_threads.use(width_of(namespace(**vars(args))))
        trainer = build_trainer(args)

        failure = None
        observed: list[Observed] = []
        start = time.monotonic()
        for samples in itertools.islice(batches_by_update(trainer), ATTEMPTS * updates):
            # read before the update: after a loss that is not finite the trainer has counted the update that failed
            update = trainer.get_num_updates()
            lr = trainer.get_lr()
            try:
                seen = _make_one_update(trainer, samples)
            except Diverged as error:
                failure = error.kind
                observed.append(Observed(update, lr, loss=math.nan, tokens=0, probes={}))
                break
            if seen is not None:
                observed.append(seen)
                progress(seen.update, seen.loss)
            if len(observed) == updates or time.monotonic() - start > seconds:
                break
        elapsed = time.monotonic() - start

        # the probes have written their values into a file of the folder; here they join the other numbers
        probes = read_record(Path(folder) / FILE).rows  # update -> Observed.probes
    if not observed:
        raise UserError("no update was made", "every batch overflowed, or was too large for the device's memory")

    if warmup is None:
        longer = ShortTraining.longer
    elif len(observed) < updates:
        longer = "more --seconds"
    else:
        longer = f"--updates {2 * warmup}"
    cfg = namespace(**vars(args))
    return ShortTraining(
        method=cfg.method,
        layers=archs.depths(cfg),
        parameters=sum(p.numel() for p in trainer.get_model().parameters()),
        peak=max(args.lr),
        observed=[replace(seen, probes=probes.get(seen.update, {})) for seen in observed],
        failure=failure,
        seconds=elapsed,
        longer=longer,
    )


def _set_up_check(args: argparse.Namespace, warmup: int | None) -> None:
    """Change fairseq-train's parsed flags: all probes on, in each update, and a warm-up of at most `warmup` updates.

    warmup: None to leave it as it is. Raises a UserError for a training that cannot be checked
    (trainer.refuse_other_trainings), and for a warm-up to compress where there is none.
    """
    refuse_other_trainings(args, "the check")
    args.deepnet_probe = "all"
    args.probe_interval = 1
    if warmup is not None:
        if not getattr(args, "warmup_updates", 0):
            raise UserError("--compress-warmup", "this schedule has no warm-up; drop the flag")
        args.warmup_updates = min(warmup, args.warmup_updates)


def _make_one_update(trainer: Trainer, samples: list) -> Observed | None:
    """Make one update, and return its numbers, but for those of the probes, which the probes write into a file.

    Return None if no update was made: a gradient overflowed in fp16, which only changes the loss scale, or a batch was
    too large for the device's memory. samples: batches of the update, as batches_by_update yields them.
    """
    update = trainer.get_num_updates()
    lr = trainer.get_lr()
    log = make_update(trainer, samples)
    if log is None:
        return None
    tokens = sum(sample["ntokens"] for sample in samples if sample)
    return Observed(update, lr, loss=float(log["loss"]), tokens=tokens, probes={})


@dataclass(frozen=True)
class Finding:
    """Reason for a verdict.

    kind: AT_RISK or DIVERGING; update: number of the update from which on it shows, or of the last one if all updates
    together show it, as a rising loss; evidence: one line with the numbers.
    """

    kind: str
    update: int
    evidence: str


@dataclass(frozen=True)
class Verdict:
    """Verdict on a training; str() gives it in one line.

    kind: DIVERGING or AT_RISK, whichever is the worst of the findings; without findings STABLE, or UNKNOWN if
    ShortTraining.too_short; findings: reasons for it; notes: what limits the verdict, a line each.
    """

    kind: str
    findings: list[Finding]
    notes: list[str]

    def __str__(self) -> str:
        if not self.findings:  # stable or unknown
            return self.kind
        first = next(finding for finding in self.findings if finding.kind == self.kind)  # it gives the evidence
        where = f" at update {first.update}" if self.kind == DIVERGING else ""
        return f"{self.kind}{where}: {first.evidence}"


def judge(short_training: ShortTraining) -> Verdict:
    """Judge a short training by its losses, the evenness of its gradients, and its headroom in fp16."""
    observed = short_training.observed
    last = observed[-1].update
    findings = []

    # loss or gradients that are not finite
    if short_training.failure is not None:  # a loss alone does not tell: of batches without targets it is 0 / 0
        evidence = f"loss or gradients are not finite ({short_training.failure})"
        findings.append(Finding(DIVERGING, last, evidence))

    # gradients that do not reach all layers
    for stack in short_training.stacks:
        vanishing = _vanishing_gradients(observed, stack)
        if vanishing is not None:
            findings.append(vanishing)

    # a loss that rises
    losses = [seen.loss for seen in observed if math.isfinite(seen.loss)]
    if len(losses) >= 2 * WINDOW:
        start = median(losses[:WINDOW])
        end = median(losses[-WINDOW:])
        if end > start:
            findings.append(Finding(AT_RISK, last, f"the loss rises, from {start:.2f} to {end:.2f} bits"))

    # numbers that may become too large for fp16
    headroom = short_training.headroom
    if headroom and headroom.doublings < FEW_DOUBLINGS:
        evidence = f"activations reach {headroom.activation:.0f}; fp16 ends at 65504: train with --bf16"
        findings.append(Finding(AT_RISK, last, evidence))
    elif headroom and headroom.loss_scale < 1:
        findings.append(Finding(AT_RISK, last, f"gradients need a loss scale of {headroom.loss_scale:g} in fp16"))

    if any(finding.kind == DIVERGING for finding in findings):
        kind = DIVERGING
    elif findings:
        kind = AT_RISK
    elif short_training.too_short:
        kind = UNKNOWN
    else:
        kind = STABLE
    return Verdict(kind, findings, _notes(short_training))


def _vanishing_gradients(observed: list[Observed], stack: str) -> Finding | None:
    """Return a finding if some layers of a stack get almost no gradient beside its others, else None.

    Under Post-LN the lower layers get almost none from the start (DeepNet, Wang et al. 2022, Figure 3a), and in any
    method some layers after divergence (Figure 4d). The thresholds are explained where the file begins. The result is
    None too if there are too few updates to compare.
    """
    updates = []
    evenness = []  # at each of these updates
    norms: list[float] = []  # at the last of them; an update that failed may have none, or NaN
    for seen in observed[1:]:  # in the first update some methods have gradients of zero
        value = seen.evenness(stack)
        if math.isfinite(value):
            updates.append(seen.update)
            evenness.append(value)
            norms = seen.profile(stack)
    if len(evenness) < 2 * WINDOW - 1:  # as many as ShortTraining.too_short asks for, without the first update
        return None

    start = median(evenness[:WINDOW])
    end = median(evenness[-WINDOW:])
    exponent = 1 / max(len(norms) - 1, 1)
    neighbours_at_start = start**exponent  # mean ratio of neighbouring layers
    neighbours_at_end = end**exponent
    is_uneven = start < UNEVEN and neighbours_at_start < FADING and end < HEALED * start
    is_lost = neighbours_at_end < LOST
    if not is_uneven and not is_lost:
        return None

    # the update from which on evenness stays below VANISHED to the end; the last update if there is none
    first_vanished = 0
    for index, value in enumerate(evenness):
        if value >= VANISHED:
            first_vanished = index + 1
    since = updates[min(first_vanished, len(updates) - 1)]

    kind = DIVERGING if is_lost or end < VANISHED else AT_RISK
    where = f"{stack} layer {norms.index(min(norms)) + 1}"  # layers are counted from 1
    evidence = f"{where} gets {end:.0e} of the largest layer's gradient, {start:.0e} in the first updates"
    return Finding(kind, since, evidence)


def _notes(short_training: ShortTraining) -> list[str]:
    """Return what limits the verdict, a line each: a learning rate below half of its peak, and too few updates.

    A training that diverged has no notes, because more updates of it cannot be made.
    """
    if short_training.failure is not None:
        return []
    largest_lr = max(seen.lr for seen in short_training.observed)
    peak = short_training.peak
    notes = []
    if largest_lr < 0.5 * peak:
        notes.append(
            f"the learning rate came to {largest_lr / peak:.1%} of its peak {peak:g}: this says nothing about the "
            f"peak; {short_training.longer} goes there"
        )
    if short_training.too_short:
        notes.append(
            f"only {counted(len(short_training.observed), 'update')} in the time given, too few for a verdict; "
            "give more --seconds"
        )
    return notes


def _evenly_chosen(count: int, wanted: int) -> list[int]:
    """Choose at most `wanted` of the indices 0 to count - 1, with the first and the last, at about equal distances."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, wanted))})


def _progress_table(short_training: ShortTraining) -> str:
    """Tabulate, at some of the updates, the learning rate and the quantities of DeepNet's Figures 3 and 4.

    These are loss, model update, norms of the LayerNorms' inputs, and the evenness of each stack.
    """
    stacks = list(short_training.stacks)
    header = ["update", "lr", "loss", "model update", "LN input ffn", "self-attn"]
    header += [f"grad {stack}" for stack in stacks]

    rows = [header]
    for index in _evenly_chosen(len(short_training.observed), PROGRESS_ROWS):
        observed = short_training.observed[index]
        model_update = observed.probes.get("model_update", {}).get(stacks[-1], math.nan)  # of the model's output
        cells = [
            str(observed.update),
            f"{observed.lr:.1e}",
            f"{observed.loss:.2f}",
            f"{model_update:.2f}",
            f"{observed.ln_input('ffn'):.1f}",
            f"{observed.ln_input('self_attn'):.1f}",
        ]
        cells += [f"{observed.evenness(stack):.0e}" for stack in stacks]
        rows.append(cells)
    return render(rows)


def _gradient_table(short_training: ShortTraining) -> str:
    """Tabulate the gradient norms of at most LAYERS_SHOWN layers of each stack, at the first and the last update."""
    rows = [["layer", "gradient at first", "at last"]]
    for stack in short_training.stacks:
        first = short_training.observed[0].profile(stack)
        last = short_training.observed[-1].profile(stack)
        for layer in _evenly_chosen(len(first), LAYERS_SHOWN):
            at_last = f"{last[layer]:.1e}" if last else "-"  # an update that failed may have no gradients
            rows.append([f"{stack} {layer + 1}", f"{first[layer]:.1e}", at_last])
    return render(rows)


def verdict_text(short_training: ShortTraining) -> str:
    """Return the whole report: the model, two tables, the headroom in fp16, and at the end the verdict."""
    verdict = judge(short_training)
    other_findings = [finding for finding in verdict.findings if finding.evidence not in str(verdict)]

    headroom = short_training.headroom
    half_precision = "not measured: no update had finite numbers"
    if headroom:
        half_precision = (
            f"activations up to {headroom.activation:.0f} ({headroom.doublings:.1f} doublings below 65504); gradients "
            f"of the weights stay finite up to a loss scale of {headroom.loss_scale:g}"
        )

    depth = "-".join(f"{count}L" for count in short_training.stacks.values())
    lines = [
        f"{depth} {short_training.method}, {short_training.parameters:,} parameters, "
        f"{counted(len(short_training.observed), 'update')} in {short_training.seconds:.0f} s",
        "",
        _progress_table(short_training),
        "",
        "loss: bits per token; model update: ||F(x, theta_i) - F(x, theta_0)|| per token; grad: smallest over largest",
        "gradient norm of the stack's layers",
        "",
        _gradient_table(short_training),
        "",
        f"fp16: {half_precision}",
        "",
        f"verdict: {verdict}",
        *(f"  also {other.kind}: {other.evidence}" for other in other_findings),
        *(f"  note: {note}" for note in verdict.notes),
    ]
    return "\n".join(lines)


def as_dict(short_training: ShortTraining) -> dict:
    """Return verdict, findings, notes, facts of the model, and every update's numbers, for --json.

    "layers" is a pair, the numbers of layers of encoder and decoder.
    """
    verdict = judge(short_training)
    return {
        "verdict": verdict.kind,
        "findings": [vars(finding) for finding in verdict.findings],
        "notes": verdict.notes,
        "method": short_training.method,
        "layers": short_training.layers,
        "parameters": short_training.parameters,
        "updates": [_update_as_dict(observed) for observed in short_training.observed],
    }


def _update_as_dict(observed: Observed) -> dict:
    """Return update, lr, loss and probes of one update for --json, as in Observed; what is not finite becomes None."""
    probes = {}
    for name, values in observed.probes.items():
        probes[name] = {address: _finite_or_none(value) for address, value in values.items()}
    return {"update": observed.update, "lr": observed.lr, "loss": _finite_or_none(observed.loss), "probes": probes}


def _finite_or_none(value: float) -> float | None:
    """Return the value, or None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None
