"""What fairseq's Trainer does otherwise when its model is sharded.

Checkpoints are whole ones, which any number of processes and any program reads, or a file a rank (shards.py).
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from types import SimpleNamespace

import torch
from fairseq import utils
from fairseq.models import BaseFairseqModel
from fairseq.optim import FairseqOptimizer
from fairseq.trainer import Trainer
from torch import distributed

from ...errors import UserError
from ..checkpoints import atomic
from ..optimisers import deepnet_adam
from . import shards

BACKEND = "fully_sharded"
# (section of fairseq's config, setting): the value it is refused with, and why
REFUSED = {
    ("distributed_training", "zero_sharding"): ("os", "the optimiser's state is sharded already"),
    ("distributed_training", "cpu_offload"): (True, "every rank computes where its shards are"),
    ("ema", "store_ema"): (True, "the moving average is of whole weights; average checkpoints instead"),
    ("task", "eval_bleu"): (True, "generate from the checkpoints instead"),
    ("common", "amp"): (True, "take --fp16 or --bf16"),
    ("common", "memory_efficient_fp16"): (True, "take --fp16"),
    ("common", "memory_efficient_bf16"): (True, "take --bf16"),
    ("optimization", "use_bmuf"): (True, "take --ddp-backend pytorch_ddp"),
}


def sharded(trainer: Trainer):
    """The trainer's model, a FullySharded, if it is one."""
    wanted = trainer.cfg.distributed_training.ddp_backend == BACKEND
    return trainer.model if wanted and trainer.use_distributed_wrapper else None


def check_sharding(setting: Callable[[str, str], object]) -> None:
    """UserError, naming the flag, for what cannot be sharded; setting(section, key): a value of fairseq's config."""
    optimizer = setting("optimizer", "_name") or setting("", "optimizer")
    if setting("distributed_training", "zero_sharding") == "os" and optimizer != deepnet_adam.NAME:
        only = f"with --optimizer {deepnet_adam.NAME}, which reads the checkpoints of adam"
        raise UserError(f"--zero-sharding os: {only}; {optimizer} is not sharded")
    if setting("distributed_training", "ddp_backend") != BACKEND:
        return
    for (section, key), (refused, reason) in REFUSED.items():
        if setting(section, key) == refused:
            raise UserError(f"--{key.replace('_', '-')}: not with --ddp-backend {BACKEND}: {reason}")


def shard_model(original, args, model, process_group, device):
    """A FullySharded for --ddp-backend fully_sharded."""
    if args.ddp_backend != BACKEND:
        return original(args, model, process_group, device)
    if not isinstance(model, BaseFairseqModel):
        raise UserError(f"--criterion: one with parameters of its own is not trained by --ddp-backend {BACKEND}")
    from .fully_sharded import FullySharded  # FSDP2 takes a second to import

    return FullySharded(model, process_group, device, keep_gathered=args.no_reshard_after_forward)


def build_optimizer(original, trainer: Trainer) -> None:
    """Shares its state over ranks (--zero-sharding os), or reads the rows of a sharded model from checkpoints."""
    cfg = trainer.cfg
    check_sharding(lambda section, key: getattr(getattr(cfg, section, None), key, None))
    place = cfg.distributed_training
    zero, place.zero_sharding = place.zero_sharding, "none"  # fairseq's needs fairscale
    try:
        original(trainer)
    finally:
        place.zero_sharding = zero
    if zero == "os" and trainer.data_parallel_world_size > 1:
        trainer.optimizer.shard(trainer.data_parallel_process_group)
    if model := sharded(trainer):
        _read_rows(model, trainer.optimizer, trainer.cfg.optimizer._name)


def _read_rows(model, optimizer: FairseqOptimizer, name: str) -> None:
    """The optimiser is given whole states, as checkpoints hold them."""
    if not optimizer.supports_flat_params:
        why = "where a rank has some rows of each parameter; take adam or another one that treats numbers one by one"
        raise UserError(f"--optimizer {name}: not with --ddp-backend {BACKEND}, {why}")
    load = optimizer.load_state_dict
    cut = lambda state: shards.cut_state(state, model.trained_shapes(), model.rank, model.world)  # noqa: E731
    optimizer.load_state_dict = lambda state, *args: load(cut(state), *args)


def norm_over_ranks(trainer: Trainer, norm: torch.Tensor) -> torch.Tensor:
    """Of the gradients, where a rank has the norm of its shards."""
    if not sharded(trainer):
        return norm
    squared = norm.float() ** 2
    distributed.all_reduce(squared, group=trainer.data_parallel_process_group)
    return squared**0.5


def save_from_all(original, cfg, trainer: Trainer, epoch_itr, val_loss):
    """All ranks give what they have before the first one writes; what no checkpoint asks for any more is removed."""
    model = sharded(trainer)
    if not model or cfg.no_save:
        return original(cfg, trainer, epoch_itr, val_loss)
    trainer.found = None
    try:
        trainer.found = _found(cfg, trainer, model)
        return original(cfg, trainer, epoch_itr, val_loss)
    except atomic.SaveError:
        if trainer.found is None:  # fairseq, which notes the best score when it saves, had no turn
            cfg = copy.deepcopy(cfg)
            cfg.no_save = True
            original(cfg, trainer, epoch_itr, val_loss)
        raise
    finally:
        trainer.found = None
        if trainer.is_data_parallel_master:
            shards.remove_unused(cfg.save_dir)


def _found(cfg, trainer: Trainer, model) -> dict:
    """What the first rank writes of the model and its optimiser, a call of all."""
    optimiser = None if cfg.no_save_optimizer_state else trainer.optimizer.state_dict()
    shapes = model.trained_shapes()
    if not trainer.cfg.distributed_training.use_sharded_state:
        found = {"model": model.state_dict()}
        return found if optimiser is None else found | {"last_optimizer_state": _gathered(model, optimiser, shapes)}
    mine = {"model": model.local_state_dict(), "shapes": model.shapes, "trained": shapes}
    mine |= {} if optimiser is None else {"optimiser": optimiser}
    return {"model": {}, shards.KEY: shards.write(cfg.save_dir, trainer, utils.move_to_cpu(mine))}


def _gathered(model, state: dict, shapes: list[torch.Size]) -> dict:
    local = [part.shape for part in model.parameters() if part.requires_grad]
    return shards.changed(state, local, lambda number, key, value: model.gather(value, shapes[number]))


def consolidate_unless_sharded(original, trainer: Trainer) -> None:
    """Of sharded models it is done; after an error there are no other ranks to do it with."""
    if not sharded(trainer) and not _left_alone(trainer):
        original(trainer)


def write_unless_alone(original, trainer: Trainer, filename: str, extra_state: dict):
    """Without the other ranks, as after an error, nothing of a sharded model can be saved."""
    if _left_alone(trainer) or (sharded(trainer) and getattr(trainer, "found", None) is None):
        return None
    return original(trainer, filename, extra_state)


def _left_alone(trainer: Trainer) -> bool:
    """Is an error on its way, and the state with the other ranks, which know nothing of it?"""
    return sys.exc_info()[1] is not None and getattr(trainer.optimizer.optimizer, "is_shared", False)


def whole_state(original, trainer: Trainer) -> dict:
    """Called by the first rank alone: what all ranks have to do is done."""
    if not sharded(trainer):
        return original(trainer)
    model, checkpoint = trainer._wrapped_model, trainer.cfg.checkpoint
    keep, checkpoint.no_save_optimizer_state = checkpoint.no_save_optimizer_state, True
    trainer._wrapped_model = SimpleNamespace(state_dict=dict)
    try:
        state = original(trainer)
    finally:
        trainer._wrapped_model, checkpoint.no_save_optimizer_state = model, keep
    return state | trainer.found


def read_on_every_rank(original, trainer: Trainer, *args, **kwargs):
    """Every rank of a sharded model reads for itself: sent by the first, all would come to lie on each GPU."""
    if sharded(trainer):
        trainer.cfg.checkpoint.load_checkpoint_on_all_dp_ranks = True
    return original(trainer, *args, **kwargs)


def read_shards(original, path, *args, **kwargs) -> dict:
    """The whole of a checkpoint that lies in shards."""
    state = original(path, *args, **kwargs)
    return shards.read(path, state) if shards.KEY in state else state
