"""The first updates of a fairseq-train run, in this process, with all probes on and nothing left behind."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from fairseq.data import iterators
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from .. import archs, config
from ..errors import UserError
from ..probes.half_precision import LARGEST
from ..probes.record import FILE, Values, read_record
from ..trainer import build_trainer, parse

ATTEMPTS = 3  # batches for an update: in fp16 the first ones overflow until the loss scale fits


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

    def profile(self, stack: str) -> list[float]:
        """Gradient norm of each layer of `stack`, L2, the first layer first; empty if the update has none."""
        norms = self.probes.get("gradient_norm", {})
        return [norms[where] for layer in range(1, len(norms) + 1) if (where := f"{stack}.{layer}") in norms]

    def evenness(self, stack: str) -> float:
        """Smallest over largest gradient norm of the layers: 1 where all learn alike, 0 where some get nothing.

        NaN for no layers and for norms that are not finite.
        """
        norms = self.profile(stack)
        if not norms or not all(map(math.isfinite, norms)):
            return math.nan
        return min(norms) / max(norms) if max(norms) > 0 else 0.0

    def ln_input(self, kind: str) -> float:
        """Mean norm of what the LayerNorms of one kind of branch read, over all stacks; NaN if the update has none.

        kind: "ffn" or "self_attn".
        """
        values = [v for a, v in self.probes.get("ln_input", {}).items() if a.split(".")[2:] == [kind]]
        return fmean(values) if values else math.nan


@dataclass(frozen=True)
class Headroom:
    """How much room fp16 has left.

    activation: largest absolute value in the forward passes; gradient: largest absolute value of that of the summed
    loss of one update, per unit of loss scale.
    """

    activation: float
    gradient: float

    @property
    def doublings(self) -> float:
        """How often the activations can double before fp16 overflows."""
        return math.log2(LARGEST / self.activation)

    @property
    def loss_scale(self) -> float:
        """The largest power of two as loss scale that keeps the gradients of the weights finite."""
        return 2.0 ** math.floor(math.log2(LARGEST / self.gradient))


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

    @property
    def headroom(self) -> Headroom | None:
        """The least of all updates; None where no update has finite numbers."""
        rows = [(o.probes["half_precision"], o.tokens) for o in self.observed if "half_precision" in o.probes]
        rows = [(row, tokens) for row, tokens in rows if all(map(math.isfinite, row.values())) and tokens]
        if not rows:
            return None
        activation = max(value for row, _ in rows for name, value in row.items() if name != "gradient")
        return Headroom(activation, max(row["gradient"] * tokens for row, tokens in rows))


def train_briefly(
    flags: list[str], updates: int, warmup: int | None, seconds: float, progress: Callable[[int, float], None]
) -> ShortTraining:
    """Trains as `fairseq-train FLAGS` would, on one process, for `updates` or until `seconds` are over.

    warmup: compress the learning rate's warm-up to so many updates; progress(update, loss) after each, loss in bits per
    token. Nothing is left on the disk. UserError for flags that this package refuses, for another package's
    architecture, and where no update could be made; a flag that fairseq-train refuses ends the program, as there.
    """
    with tempfile.TemporaryDirectory() as folder:
        args = _adapt(parse([*flags, "--no-save", "--save-dir", folder]), warmup)
        trainer = build_trainer(args)
        failure, seen = None, []
        start = time.monotonic()
        try:
            for samples in itertools.islice(_batches(trainer), ATTEMPTS * updates):
                if step := _step(trainer, samples):
                    seen.append(step)
                    progress(step.update, step.loss)
                if len(seen) == updates or time.monotonic() - start > seconds:
                    break
        except FloatingPointError as error:
            failure = str(error).splitlines()[0]
            seen.append(Observed(trainer.get_num_updates(), trainer.get_lr(), math.nan, 0, {}))
        elapsed = time.monotonic() - start
        path = Path(folder) / FILE
        rows = read_record(path).rows if path.exists() else {}
    if not seen:
        raise UserError("no update was made: every batch overflowed, or was too large for the device's memory")
    cfg = config.namespace(**vars(args))
    return ShortTraining(
        cfg.method,
        archs.depths(cfg),
        sum(p.numel() for p in trainer.get_model().parameters()),
        max(args.lr),
        [replace(step, probes=rows.get(step.update, {})) for step in seen],
        failure,
        elapsed,
    )


def _adapt(args: argparse.Namespace, warmup: int | None) -> argparse.Namespace:
    """The run's args with all probes on and its warm-up compressed; UserError for a run that a check cannot watch."""
    if args.arch not in archs.PRESETS:
        known = " and ".join(archs.STACKS)
        raise UserError(f"--arch {args.arch}: the check is for {known}, whose --method post_ln and pre_ln are the same")
    for name, default in (("restore_file", "checkpoint_last.pt"), ("finetune_from_model", None)):
        if getattr(args, name) != default:
            raise UserError(f"--{name.replace('_', '-')}: the check looks at a training from its first update; drop it")
    args.deepnet_probe, args.probe_interval = "all", 1
    if warmup is not None:
        if not getattr(args, "warmup_updates", 0):
            raise UserError("--compress-warmup: this schedule has no warm-up; drop the flag")
        args.warmup_updates = min(warmup, args.warmup_updates)
    return args


def _batches(trainer: Trainer) -> Iterator[list]:
    """Batches as the trainer takes them, epoch after epoch."""
    update_freq = trainer.cfg.optimization.update_freq
    for epoch in itertools.count(1):
        iterator = trainer.get_train_iterator(epoch)
        if epoch == 1:
            trainer.lr_step_begin_epoch(epoch)
            trainer.lr_step_update()
        shuffle = epoch > trainer.cfg.dataset.curriculum
        frequency = update_freq[min(epoch, len(update_freq)) - 1]
        trainer.begin_epoch(epoch)
        yield from iterators.GroupedIterator(iterator.next_epoch_itr(shuffle=shuffle), frequency)


def _step(trainer: Trainer, samples: list) -> Observed | None:
    """One update, without what the probes will have written; None if it overflowed and only the loss scale changed."""
    update, lr = trainer.get_num_updates(), trainer.get_lr()
    with metrics.aggregate("train_inner"), _quiet():
        log = trainer.train_step(samples)
    tokens = sum(sample["ntokens"] for sample in samples if sample)
    return None if log is None else Observed(update, lr, float(log["loss"]), tokens, {})


@contextlib.contextmanager
def _quiet():
    """fairseq prints a page of hooks' findings before it reports numbers that are not finite."""
    level = logging.getLogger("fairseq").level
    logging.getLogger("fairseq").setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logging.getLogger("fairseq").setLevel(level)
