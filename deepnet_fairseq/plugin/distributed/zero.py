"""`--zero-sharding os`: each process keeps a part of Adam's state (ZeRO stage 1, optimisers/shard.py).

fairseq's own needs fairscale; this one does not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from ...errors import UserError
from ..optimisers import deepnet_adam


def check_settings(setting: Callable[[str, str], object]) -> None:
    """Raise a UserError for settings that forbid sharding, if it is asked for.

    setting(section, key) returns a setting of fairseq's config, None if it is not there.
    """
    if setting("distributed_training", "ddp_backend") == "fully_sharded":
        raise UserError("--ddp-backend fully_sharded", "not supported; use --zero-sharding os")
    if setting("distributed_training", "zero_sharding") != "os":
        return

    # in a config the section "optimizer" has the name; of the command line's flags, which have no sections, --optimizer
    optimizer = setting("optimizer", "_name") or setting("", "optimizer")
    if optimizer != deepnet_adam.NAME:
        only = f"with --optimizer {deepnet_adam.NAME}, which reads the checkpoints of adam"
        raise UserError("--zero-sharding os", f"{only}; {optimizer} is not sharded")
    for section, key in (("common", "amp"), ("optimization", "use_bmuf")):
        if setting(section, key):
            raise UserError("--zero-sharding os", f"not with --{key.replace('_', '-')}; drop one of them")


def must_skip_collectives(trainer) -> bool:
    """Return True while this rank handles an error and the optimiser's state is sharded.

    Collectives must be skipped then: the other ranks, which do not know of the error, would not join them. A save
    without sharding makes none.
    """
    handles_error = sys.exc_info()[1] is not None
    return handles_error and getattr(trainer.optimizer.optimizer, "is_sharded", False)
