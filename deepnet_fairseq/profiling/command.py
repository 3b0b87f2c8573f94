"""`deepnet profile`: everything fairseq-train does up to its first batch, and no further."""

from __future__ import annotations

import logging
import sys

from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

from ..errors import UserError
from .profile import Profile

FORCED = ("--method", "admin", "--admin-profile", "auto", "--distributed-world-size", "1")


def profile_run(flags: list[str]) -> Profile:
    """The profile that `fairseq-train FLAGS --method admin --admin-profile auto` would start from, on one process.

    flags: DATA and flags of fairseq-train. UserError for those that no Admin model can be trained with.
    """
    methods = [b for a, b in zip(flags, flags[1:], strict=False) if a == "--method"]
    methods += [flag.split("=", 1)[1] for flag in flags if flag.startswith("--method=")]
    if set(methods) - {"admin"}:
        raise UserError(f"--method {methods[0]}: has no profile, only admin has")
    args = options.parse_args_and_arch(options.get_training_parser(), [*flags, *FORCED])
    cfg = convert_namespace_to_omegaconf(args)
    if cfg.dataset.max_tokens is None and cfg.dataset.batch_size is None:
        raise UserError("--max-tokens: give the batch size of the run to come")
    logging.basicConfig(stream=sys.stderr)
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    trainer.get_train_iterator(epoch=1)
    return model.omega_profile
