"""Measure Admin's profile as a training would, for `deepnet profile`."""

from __future__ import annotations

import logging
import sys

from ..plugin import trainer
from ..plugin.admin_profile import Profile

FORCED = ("--method", "admin", "--admin-profile", "auto")  # behind the user's flags, so that these win


def profile_run(flags: list[str]) -> Profile:
    """Return the profile that `fairseq-train FLAGS --method admin --admin-profile auto` would start from.

    flags: DATA and flags of fairseq-train, for one process.
    """
    args = trainer.parse_training_flags([*flags, *FORCED])
    logging.basicConfig(stream=sys.stderr)
    built = trainer.build_trainer(args)
    built.get_train_iterator(epoch=1)  # the plug-in measures the profile on the first batch of this epoch
    return built.get_model().omega_profile
