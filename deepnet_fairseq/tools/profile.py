"""Measure Admin's profile (plugin/admin_profile.py) as a training would, for `deepnet profile`."""

from __future__ import annotations

import logging
import sys

from ..plugin import trainer
from ..plugin.admin_profile import Profile

FORCED = ("--method", "admin", "--admin-profile", "auto")  # stand behind the user's flags and thus override them


def profile_run(flags: list[str]) -> Profile:
    """Return the profile that `fairseq-train FLAGS --method admin --admin-profile auto` would start from.

    flags: DATA and flags of fairseq-train, of a training in one process.
    """
    args = trainer.parse_training_flags([*flags, *FORCED])
    logging.basicConfig(stream=sys.stderr)
    built = trainer.build_trainer(args)
    # with an iterator of the first epoch the plug-in's trainer measures the profile, on the first batch
    built.get_train_iterator(epoch=1)
    return built.get_model().omega_profile
