"""`--zero-sharding os`: each process keeps a part of Adam's state, without fairscale, which fairseq needs for it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ...errors import UserError
from ..optimisers import deepnet_adam


def check_settings(setting: Callable[[str, str], object]) -> None:
    """Raise a UserError for settings that forbid sharding; setting(section, key) returns one of fairseq's config."""
    if setting("distributed_training", "ddp_backend") == "fully_sharded":
        raise UserError("--ddp-backend fully_sharded: not supported; use --zero-sharding os")
    if setting("distributed_training", "zero_sharding") != "os":
        return

    optimizer = setting("optimizer", "_name") or setting("", "optimizer")
    if optimizer != deepnet_adam.NAME:
        only = f"with --optimizer {deepnet_adam.NAME}, which reads the checkpoints of adam"
        raise UserError(f"--zero-sharding os: {only}; {optimizer} is not sharded")
    for section, key in (("common", "amp"), ("optimization", "use_bmuf")):
        if setting(section, key):
            raise UserError(f"--zero-sharding os: not with --{key.replace('_', '-')}; drop one of them")


def must_skip_collectives(trainer) -> bool:
    """Return True while only this rank handles an error and optimiser state is sharded.

    Collectives must be skipped then: the other ranks, which do not know of the error, would not join them.
    """
    handles_error = sys.exc_info()[1] is not None
    return handles_error and getattr(trainer.optimizer.optimizer, "is_sharded", False)
