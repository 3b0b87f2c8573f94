"""What fairseq's Trainer does otherwise when its model is sharded."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

import torch
from fairseq import models
from fairseq.models import BaseFairseqModel
from fairseq.optim import FairseqOptimizer
from fairseq.trainer import Trainer
from torch import distributed

from ..compat.wrapping import wrap
from ..errors import UserError
from ..optim import deepnet_adam
from . import optimiser_state

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


def train_sharded() -> None:
    """Patches how fairseq's Trainer wraps a model and builds and clips its optimiser; may be called again."""
    Trainer.is_fsdp = property(lambda self: False)  # fairscale's
    wrap(models, "DistributedFairseqModel", _sharded)
    wrap(Trainer, "_build_optimizer", _build)
    wrap(Trainer, "clip_grad_norm", _clip)
    if train := sys.modules.get("fairseq_cli.train"):
        vars(train).update(fsdp_enable_wrap=contextlib.nullcontext, fsdp_wrap=lambda model: model)


def sharded(trainer: Trainer):
    """The trainer's model, a FullySharded, if it is one."""
    wanted = trainer.cfg.distributed_training.ddp_backend == BACKEND
    return trainer.model if wanted and trainer.use_distributed_wrapper else None


def check_sharding(setting: Callable[[str, str], object]) -> None:
    """UserError, naming the flag, for what cannot be sharded; setting(section, key): a value of fairseq's config."""
    optimizer = setting("optimizer", "_name") or setting("", "optimizer")
    if setting("distributed_training", "zero_sharding") == "os" and optimizer != deepnet_adam.NAME:
        raise UserError(
            f"--zero-sharding os: with --optimizer {deepnet_adam.NAME}, which reads the checkpoints of adam; "
            f"{optimizer} is not sharded"
        )
    if setting("distributed_training", "ddp_backend") != BACKEND:
        return
    for (section, key), (refused, reason) in REFUSED.items():
        if setting(section, key) == refused:
            raise UserError(f"--{key.replace('_', '-')}: not with --ddp-backend {BACKEND}: {reason}")


def _sharded(original, args, model, process_group, device):
    if args.ddp_backend != BACKEND:
        return original(args, model, process_group, device)
    if not isinstance(model, BaseFairseqModel):
        raise UserError(f"--criterion: one with parameters of its own is not trained by --ddp-backend {BACKEND}")
    from .fully_sharded import FullySharded  # FSDP2 takes a second to import

    return FullySharded(model, process_group, device, keep_gathered=args.no_reshard_after_forward)


def _build(original, trainer: Trainer) -> None:
    cfg = trainer.cfg
    check_sharding(lambda section, key: getattr(getattr(cfg, section, None), key, None))
    place = cfg.distributed_training
    zero, place.zero_sharding = place.zero_sharding, "none"  # fairseq's needs fairscale
    try:
        original(trainer)
    finally:
        place.zero_sharding = zero
    if zero == "os" and trainer.data_parallel_world_size > 1:
        trainer.optimizer.share(trainer.data_parallel_process_group)
    if model := sharded(trainer):
        _read_rows(model, trainer.optimizer, trainer.cfg.optimizer._name)


def _read_rows(model, optimizer: FairseqOptimizer, name: str) -> None:
    """The optimiser is given whole states, as checkpoints hold them."""
    if not optimizer.supports_flat_params:
        raise UserError(
            f"--optimizer {name}: not with --ddp-backend {BACKEND}, where a rank has some rows of each parameter; take "
            "adam or another one that treats numbers one by one"
        )
    load = optimizer.load_state_dict

    def load_rows(state: dict, *args) -> None:
        load(optimiser_state.cut(state, model.trained_shapes(), model.rank, model.world), *args)

    optimizer.load_state_dict = load_rows


def _clip(original, trainer: Trainer, clip_norm: float):
    if not sharded(trainer):
        return original(trainer, clip_norm)

    def of_all(norm: torch.Tensor) -> torch.Tensor:
        squared = norm.float() ** 2
        distributed.all_reduce(squared, group=trainer.data_parallel_process_group)
        return squared**0.5

    return trainer.optimizer.clip_grad_norm(clip_norm, aggregate_norm_fn=of_all)
