"""`deepnet profile`: everything fairseq-train does up to its first batch, and no further."""

from __future__ import annotations

import logging
import sys

from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

from ..errors import UserError
from .profile import Profile


def profile_run(data: str, flags: list[str]) -> Profile:
    """The profile that `fairseq-train data FLAGS --method admin --admin-profile auto` would start from.

    UserError for flags that no Admin model can be trained with.
    """
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, [data, *flags, *_method_flags(flags), "--admin-profile", "auto"])
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


def _method_flags(flags: list[str]) -> list[str]:
    for flag, value in zip(flags, flags[1:], strict=False):
        if flag == "--method" and value != "admin":
            raise UserError(f"--method {value}: has no profile, only admin has")
    return ["--method", "admin"]
