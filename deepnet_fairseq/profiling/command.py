"""`deepnet profile`: everything fairseq-train does up to its first batch, and no further."""

from __future__ import annotations

import logging
import sys

from ..errors import UserError
from ..trainer import build_trainer, parse
from .profile import Profile

FORCED = ("--method", "admin", "--admin-profile", "auto")


def profile_run(flags: list[str]) -> Profile:
    """The profile that `fairseq-train FLAGS --method admin --admin-profile auto` would start from, on one process.

    flags: DATA and flags of fairseq-train. UserError for those that no Admin model can be trained with.
    """
    methods = [b for a, b in zip(flags, flags[1:], strict=False) if a == "--method"]
    methods += [flag.split("=", 1)[1] for flag in flags if flag.startswith("--method=")]
    if set(methods) - {"admin"}:
        raise UserError(f"--method {methods[0]}: has no profile, only admin has")
    args = parse([*flags, *FORCED])
    logging.basicConfig(stream=sys.stderr)
    trainer = build_trainer(args)
    trainer.get_train_iterator(epoch=1)
    return trainer.get_model().omega_profile
