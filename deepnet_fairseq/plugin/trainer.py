"""fairseq's Trainer as fairseq-train makes it, in this process: for commands that look at the run of its flags."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy
from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from ..errors import UserError

FORCED = ("--distributed-world-size", "1")  # fairseq's parser takes the last of two


def parse(flags: list[str]) -> argparse.Namespace:
    """DATA and flags of fairseq-train, on one process. One that fairseq-train refuses ends the program, as there."""
    return options.parse_args_and_arch(options.get_training_parser(), [*flags, *FORCED])


def build_trainer(args: argparse.Namespace, watched: Callable = lambda function, name: function) -> Trainer:
    """The Trainer with task, model and criterion from the run's seed; no batch is loaded.

    watched(function, name) gives what is called in place of the functions that make "model" and "trainer", for a clock.
    UserError without a batch size, and for whatever task and model refuse.
    """
    cfg = convert_namespace_to_omegaconf(args)
    if cfg.dataset.max_tokens is None and cfg.dataset.batch_size is None:
        raise UserError("--max-tokens: give the batch size of the run to come")
    metrics.reset()
    numpy.random.seed(cfg.common.seed)
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model = watched(task.build_model, "model")(cfg.model)
    return watched(Trainer, "trainer")(cfg, task, model, task.build_criterion(cfg.criterion))
