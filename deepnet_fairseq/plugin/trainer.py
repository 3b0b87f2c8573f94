"""fairseq's Trainer as fairseq-train makes it, in this process: for commands that look at the run of its flags."""

from __future__ import annotations

import argparse
import itertools
import logging
from collections.abc import Iterator

import numpy
from fairseq import options, tasks, utils
from fairseq.data import iterators
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from ..core import archs
from ..errors import UserError

FORCED = ("--distributed-world-size", "1")  # fairseq's parser takes the last of two


def parse(flags: list[str]) -> argparse.Namespace:
    """DATA and flags of fairseq-train, on one process. One that fairseq-train refuses ends the program, as there."""
    return options.parse_args_and_arch(options.get_training_parser(), [*flags, *FORCED])


def build_trainer(args: argparse.Namespace) -> Trainer:
    """Return the Trainer with task, model and criterion from the run's seed; no batch is loaded.

    UserError without a batch size, and for whatever task and model refuse.
    """
    cfg = convert_namespace_to_omegaconf(args)
    if cfg.dataset.max_tokens is None and cfg.dataset.batch_size is None:
        raise UserError("--max-tokens: give the batch size of the run to come")
    metrics.reset()
    numpy.random.seed(cfg.common.seed)
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    return Trainer(cfg, task, model, task.build_criterion(cfg.criterion))


def refuse_others(args: argparse.Namespace, who: str) -> None:
    """UserError, naming the flag, for another package's architecture and a training that goes on from weights.

    who: looks at it, "the check".
    """
    if args.arch not in archs.PRESETS:
        known = " and ".join(archs.STACKS)
        raise UserError(f"--arch {args.arch}: {who} is for {known}, whose --method post_ln and pre_ln are the same")
    for name, default in (("restore_file", "checkpoint_last.pt"), ("finetune_from_model", None)):
        if getattr(args, name) != default:
            raise UserError(f"--{name.replace('_', '-')}: {who} looks at a training from its first update; drop it")


def batches(trainer: Trainer) -> Iterator[list]:
    """Batches as the trainer takes them, those of an update together, epoch after epoch."""
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


def step(trainer: Trainer, samples: list) -> dict | None:
    """What one update logs; None if it overflowed and only the loss scale changed."""
    fairseq = logging.getLogger("fairseq")  # prints a page of hooks' findings before numbers that are not finite
    level = fairseq.level
    fairseq.setLevel(logging.CRITICAL)
    try:
        with metrics.aggregate("train_inner"):
            return trainer.train_step(samples)
    finally:
        fairseq.setLevel(level)
