"""Trainings of one kind at several depths and learning rates: what each lost, which can be compared."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..core import archs
from ..errors import UserError
from .depth_study import outcome
from .runs import RecordedRun


@dataclass(frozen=True)
class Trial:
    """One training.

    width: of its first stack; loss: bits per token, infinite where it came to nothing; shape: of encoder and decoder,
    their layers in proportion, (2, 1) for 12 and 6, 0 for a stack that is not there; source: where it is recorded.
    """

    method: str
    width: int
    updates: int
    layers: int
    rate: float
    seed: int
    loss: float
    shape: tuple[int, int] = (1, 1)
    source: str = ""


def trial_of(run: RecordedRun) -> Trial:
    """UserError for a run that does not say its rate, or in which nothing was measured."""
    rate, updates = run.facts.get("lr"), run.facts.get("updates", 0)
    try:
        number = float(rate)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf or not isinstance(updates, int):
        raise UserError(f"{run.where()}: lr {rate!r}, updates {updates!r}: must be numbers; record the run again")
    shape = shape_of(run.encoder_layers, run.decoder_layers)
    layers = max(run.encoder_layers, run.decoder_layers)
    return Trial(run.method, width_of(run), updates, layers, number, run.seed or 0, loss_of(run), shape, str(run.place))


def shape_of(encoder_layers: int, decoder_layers: int) -> tuple[int, int]:
    """Both in proportion, in lowest terms; 0 layers: no such stack."""
    common = math.gcd(encoder_layers, decoder_layers) or 1
    return encoder_layers // common, decoder_layers // common


def loss_of(run: RecordedRun) -> float:
    """Held-out at the end; where the run has no such loss, that of the last tenth of its training. Bits per token."""
    if run.ended_in_nan or run.stuck or run.parts.get("log", {}).get("valid"):
        return outcome(run)
    log = run.log
    last = [loss for update, loss in zip(log.updates, log.losses, strict=True) if update > 0.9 * log.updates[-1]]
    loss = sum(last) / len(last)
    return loss if math.isfinite(loss) else math.inf


def width_of(run: RecordedRun) -> int:
    """Of the residual stream of the first stack, by the run's facts, or by its command; 0 if neither says it."""
    if isinstance(run.facts.get("width"), int):
        return run.facts["width"]
    try:
        words = shlex.split(run.command or "")
    except ValueError as error:
        raise UserError(f"{run.where('command')}: is broken ({error}); record the run again") from error
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    said = dict(pairwise(words))  # the last of two, as fairseq has it
    preset = archs.PRESETS.get(said.get("--arch", ""), {})
    for stack in ("encoder", "decoder"):
        width = said.get(f"--{stack}-embed-dim", preset.get(f"{stack}_embed_dim"))
        if width is not None and not str(width).isdecimal():
            raise UserError(f"{run.where('command')}: --{stack}-embed-dim {width}: must be a number; record it again")
        if width is not None:
            return int(width)
    return 0


def by_method(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Those that can be compared with each other: of one method, width, shape and number of updates, in that order.

    UserError for two of the same depth, rate and seed among them.
    """
    groups: dict[tuple, dict[tuple, Trial]] = {}
    for trial in trials:
        group = groups.setdefault((trial.method, trial.width, trial.shape, trial.updates), {})
        other = group.setdefault((trial.layers, trial.rate, trial.seed), trial)
        if other is not trial:
            what = f"{trial.method}, {trial.layers} layers, rate {trial.rate:g}, seed {trial.seed}"
            both = f"{other.source} and {trial.source}"
            raise UserError(f"{both}: two runs of {what}, {trial.updates} updates; give a folder with one of them")
    return [list(groups[key].values()) for key in sorted(groups)]


def counted(layers: int) -> str:
    """As "6 layers", "1 layer"."""
    return f"{layers} layer{'' if layers == 1 else 's'}"


def grid(trials: Iterable[Trial]) -> dict[float, dict[int, float]]:
    """Rate -> seed -> loss, rates rising, of the trials of one depth."""
    found: dict[float, dict[int, float]] = {}
    for trial in sorted(trials, key=lambda trial: trial.rate):
        found.setdefault(trial.rate, {})[trial.seed] = trial.loss
    return found


def compared(found: dict[float, dict[int, float]]) -> tuple[int, dict[float, float]]:
    """The seed that was tried at most rates, and its losses by rate: rates are compared at one seed."""
    seeds = sorted({seed for losses in found.values() for seed in losses})
    seed = max(seeds, key=lambda seed: sum(seed in losses for losses in found.values()))
    return seed, {rate: losses[seed] for rate, losses in found.items() if seed in losses}


def best_of(found: dict[float, dict[int, float]]) -> float | None:
    """The rate of the lowest loss; None where nothing was learnt."""
    losses = compared(found)[1]
    best = min(losses, key=losses.__getitem__)
    return best if math.isfinite(losses[best]) else None


def cost(found: dict[float, dict[int, float]], rate: float | None) -> float | None:
    """Bits lost at a tried rate against the best, of one seed; None where it was not tried, or nothing was learnt."""
    losses = compared(found)[1]
    near = [known for known in losses if rate and abs(math.log2(known / rate)) < 0.01]
    best = min(losses.values())
    return losses[near[0]] - best if near and math.isfinite(best) else None


def loss_lost(trials: Sequence[Trial], rate: float) -> float | None:
    """Bits lost by the tried rate that is nearest to `rate` against the best; None if none is within half an octave.

    None too where one rate alone was tried, which is the best of itself.
    """
    losses = compared(grid(trials))[1]
    if len(losses) == 1:
        return None
    near = min(losses, key=lambda known: abs(math.log2(known / rate)))
    return cost(grid(trials), near) if abs(math.log2(near / rate)) <= 0.5 else None
