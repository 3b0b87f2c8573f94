"""Checkpoints of sharded models: whole ones, which any number of processes and any program reads, or a file a rank."""

from __future__ import annotations

import sys

from fairseq import checkpoint_utils, utils
from fairseq.trainer import Trainer

from ..checkpoints import integrity
from ..checkpoints.exact_resume import WEIGHTS
from ..compat.wrapping import wrap
from . import optimiser_state, shard_files
from .training import sharded


def save_and_load_sharded() -> None:
    """Patches saving and loading; may be called again."""
    wrap(checkpoint_utils, "save_checkpoint", _save)
    wrap(checkpoint_utils, "load_checkpoint_to_cpu", _load_to_cpu)
    wrap(Trainer, "consolidate_optimizer", _consolidate)
    wrap(Trainer, "save_checkpoint", _write)
    wrap(Trainer, "state_dict", _state_dict)
    wrap(Trainer, "load_checkpoint", _load)
    if shard_files.damage not in integrity.FURTHER_CHECKS:
        integrity.FURTHER_CHECKS.append(shard_files.damage)


def _save(original, cfg, trainer: Trainer, epoch_itr, val_loss):
    """All ranks give what they have before the first one writes; what no checkpoint asks for any more is removed."""
    model = sharded(trainer)
    if not model or cfg.no_save:
        return original(cfg, trainer, epoch_itr, val_loss)
    try:
        trainer.found = _found(cfg, trainer, model)
        return original(cfg, trainer, epoch_itr, val_loss)
    finally:
        trainer.found = None
        if trainer.is_data_parallel_master:
            shard_files.remove_unused(cfg.save_dir)


def _found(cfg, trainer: Trainer, model) -> dict:
    """What the first rank writes of the model and its optimiser, a call of all."""
    optimiser = None if cfg.no_save_optimizer_state else trainer.optimizer.state_dict()
    if trainer.cfg.distributed_training.use_sharded_state:
        return {"model": {}, shard_files.KEY: _write_shards(cfg.save_dir, trainer, model, optimiser)}
    found = {"model": model.state_dict()}
    if optimiser is not None:
        found["last_optimizer_state"] = _gathered(model, optimiser)
    return found


def _write_shards(save_dir: str, trainer: Trainer, model, optimiser: dict | None) -> dict:
    found = {"model": model.local_state_dict(), "shapes": model.shapes, "trained": model.trained_shapes()}
    if optimiser is not None:
        found["optimiser"] = optimiser
    return shard_files.write(save_dir, trainer, utils.move_to_cpu(found))


def _gathered(model, state: dict) -> dict:
    shapes = model.trained_shapes()
    local = [part.shape for part in model.parameters() if part.requires_grad]
    found = optimiser_state.entries(state, local)
    whole = optimiser_state.each(found, lambda number, value: model.gather(value, shapes[number]))
    state = optimiser_state.with_entries(state, whole, optimiser_state.is_flat(state, shapes))
    if WEIGHTS in state:
        state[WEIGHTS] = [model.gather(value, shape) for value, shape in zip(state[WEIGHTS], shapes, strict=True)]
    return state


def _consolidate(original, trainer: Trainer) -> None:
    """Of sharded models it is done; after an error there are no other ranks to do it with."""
    if not sharded(trainer) and not _left_alone(trainer):
        original(trainer)


def _write(original, trainer: Trainer, filename: str, extra_state: dict):
    """Without the other ranks, as after an error, nothing of a sharded model can be saved."""
    if _left_alone(trainer) or (sharded(trainer) and getattr(trainer, "found", None) is None):
        return None
    return original(trainer, filename, extra_state)


def _left_alone(trainer: Trainer) -> bool:
    """Is an error on its way, and the state with the other ranks, which know nothing of it?"""
    return sys.exc_info()[1] is not None and getattr(trainer.optimizer.optimizer, "is_shared", False)


def _state_dict(original, trainer: Trainer) -> dict:
    """Called by the first rank alone: what all ranks have to do is done."""
    if not sharded(trainer):
        return original(trainer)
    model, checkpoint = trainer._wrapped_model, trainer.cfg.checkpoint
    keep, checkpoint.no_save_optimizer_state = checkpoint.no_save_optimizer_state, True
    trainer._wrapped_model = _Written()
    try:
        state = original(trainer)
    finally:
        trainer._wrapped_model, checkpoint.no_save_optimizer_state = model, keep
    return state | trainer.found


class _Written:
    """In the place of a model whose state is gathered already."""

    def state_dict(self) -> dict:
        return {}


def _load(original, trainer: Trainer, *args, **kwargs):
    """Every rank of a sharded model reads for itself: sent by the first, all would come to lie on each GPU."""
    if not sharded(trainer):
        return original(trainer, *args, **kwargs)
    trainer.cfg.checkpoint.load_checkpoint_on_all_dp_ranks = True
    return original(trainer, *args, **kwargs)


def _load_to_cpu(original, path, *args, **kwargs) -> dict:
    """The whole of a checkpoint that lies in shards."""
    state = original(path, *args, **kwargs)
    return shard_files.read(path, state) if shard_files.KEY in state else state
