"""`--zero-sharding os`: each process keeps a part of Adam's state (ZeRO stage 1, optimisers/shard.py).

fairseq's own sharding needs fairscale; this one does not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from ...errors import UserError
from ..optimisers import deepnet_adam


def check_settings(setting: Callable[[str, str], object]) -> None:
    """Raise a UserError for fairscale's sharding, and for settings under which --zero-sharding os cannot work.

    setting(section, key) returns a setting of fairseq's config, or of the parsed flags, which have no sections; None
    if it is not there.
    """
    if setting("distributed_training", "ddp_backend") == "fully_sharded":
        raise UserError("--ddp-backend fully_sharded", "not supported; use --zero-sharding os")
    if setting("distributed_training", "zero_sharding") != "os":
        return

    optimizer = setting("optimizer", "_name") or setting("", "optimizer")  # in a config, or among parsed flags
    if optimizer != deepnet_adam.NAME:
        only = f"with --optimizer {deepnet_adam.NAME}, which reads the checkpoints of adam"
        raise UserError("--zero-sharding os", f"{only}; {optimizer} is not sharded")
    for section, key in (("common", "amp"), ("optimization", "use_bmuf")):
        if setting(section, key):
            raise UserError("--zero-sharding os", f"not with --{key.replace('_', '-')}; drop one of them")


def must_skip_collectives(trainer) -> bool:
    """Return whether a save must do without collectives: this rank handles an error, and its optimiser is sharded.

    A save with sharding gathers the optimiser's state from all ranks, and the others, which do not know of the error,
    would not take part. A save without sharding calls no collective. trainer: DeepTrainer.
    """
    handles_error = sys.exc_info()[1] is not None
    if not handles_error:
        return False
    torch_optimizer = trainer.optimizer.optimizer
    return getattr(torch_optimizer, "is_sharded", False)
