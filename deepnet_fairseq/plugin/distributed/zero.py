"""`--zero-sharding os`: each process keeps a part of Adam's state, without fairscale, which fairseq needs for it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from fairseq.trainer import Trainer

from ...errors import UserError
from ..optimisers import deepnet_adam


def check_settings(setting: Callable[[str, str], object]) -> None:
    """Raise a UserError for what cannot be sharded; setting(section, key) returns a value of fairseq's config."""
    if setting("distributed_training", "ddp_backend") == "fully_sharded":
        raise UserError("--ddp-backend fully_sharded: not supported; use --zero-sharding os")
    optimizer = setting("optimizer", "_name") or setting("", "optimizer")
    if setting("distributed_training", "zero_sharding") == "os" and optimizer != deepnet_adam.NAME:
        only = f"with --optimizer {deepnet_adam.NAME}, which reads the checkpoints of adam"
        raise UserError(f"--zero-sharding os: {only}; {optimizer} is not sharded")
    for section, key in (("common", "amp"), ("optimization", "use_bmuf")):
        if setting("distributed_training", "zero_sharding") == "os" and setting(section, key):
            raise UserError(f"--zero-sharding os: not with --{key.replace('_', '-')}; drop one of them")


def check_config(original, cfg) -> None:
    """Check the config before fairseq-train builds the model, where it would ask for fairscale."""
    check_settings(lambda section, key: getattr(getattr(cfg, section, None), key, None))
    original(cfg)


def build_optimizer(original, trainer: Trainer) -> None:
    """Build the optimiser and shard its state over the processes."""
    cfg = trainer.cfg
    check_settings(lambda section, key: getattr(getattr(cfg, section, None), key, None))
    place = cfg.distributed_training
    zero, place.zero_sharding = place.zero_sharding, "none"  # fairseq's needs fairscale
    try:
        original(trainer)
    finally:
        place.zero_sharding = zero
    if zero == "os" and trainer.data_parallel_world_size > 1:
        trainer.optimizer.shard(trainer.data_parallel_process_group)


def consolidate_unless_alone(original, trainer: Trainer) -> None:
    """Gather the optimiser's state, unless an error has ended the other processes' part in it."""
    if not _left_alone(trainer):
        original(trainer)


def write_unless_alone(original, trainer: Trainer, filename: str, extra_state: dict):
    """Write a checkpoint, unless an error has ended the other processes' part in it."""
    return None if _left_alone(trainer) else original(trainer, filename, extra_state)


def _left_alone(trainer: Trainer) -> bool:
    """Return whether an error is being handled while the state lies with processes that know nothing of it."""
    return sys.exc_info()[1] is not None and getattr(trainer.optimizer.optimizer, "is_shared", False)
