"""`--optimizer deepnet_adam`: fairseq's adam, its flags, numbers and checkpoints, for tens of thousands of tensors.

And their moving average (--store-ema) in as few operations.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

import torch
from fairseq import optim
from fairseq.models.ema.ema import EMA
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.optim.fp16_optimizer import FP16Optimizer
from torch import Tensor

from ...errors import UserError
from .flat_adam import FlatAdam
from .half_precision import DeepFP16

NAME = "deepnet_adam"
TOGETHER = 512  # tensors, whose float32 copies are there at one moment
FLAT = "it updates flat weights; take --optimizer adam, or pytorch_ddp with --zero-sharding os"
# (section of fairseq's config, setting): the values it is refused with, and why
REFUSED = {
    ("optimizer", "use_old_adam"): ((True,), "there is one Adam here; drop the flag"),
    ("optimizer", "fp16_adam_stats"): ((True,), "the moments are kept in float32; drop the flag"),
    ("common", "tpu"): ((True,), "runs on CPU and GPU"),
    ("common", "amp"): ((True,), "take --fp16 or --bf16, or --optimizer adam"),
    ("common", "memory_efficient_fp16"): ((True,), "float32 weights are kept; take --fp16, or --optimizer adam"),
    ("common", "memory_efficient_bf16"): ((True,), "float32 weights are kept; take --bf16, or --optimizer adam"),
    ("optimization", "use_bmuf"): ((True,), "take --optimizer adam"),
    ("distributed_training", "ddp_backend"): (("slowmo",), FLAT),
}


def check_settings(setting: Callable[[str, str], object]) -> None:
    """UserError for the first setting that deepnet_adam does not go with; setting(section, key): its value."""
    for (section, key), (values, reason) in REFUSED.items():
        value = setting(section, key)
        if value in values:
            value_said = "" if value is True else f" {value}"
            raise UserError(f"--{key.replace('_', '-')}{value_said}: not with --optimizer {NAME}: {reason}")


def settings(cfg) -> dict:
    """lr, betas, eps and weight decay of an optimiser's config under torch's names."""
    return {"lr": cfg.lr[0], "betas": betas(cfg.adam_betas), "eps": cfg.adam_eps, "weight_decay": cfg.weight_decay}


def betas(text: str) -> tuple[float, float]:
    """The words "(0.9, 0.98)" -> (0.9, 0.98); UserError for anything that is not two numbers in [0, 1)."""
    try:
        first, second = (float(value) for value in ast.literal_eval(str(text)))
    except (ValueError, SyntaxError, TypeError):
        first = second = 1.0
    if not 0 <= first < 1 or not 0 <= second < 1:
        raise UserError(f"--adam-betas {text}: give two numbers in [0, 1), as '(0.9, 0.98)'")
    return first, second


class FlatFP16Optimizer(DeepFP16):
    """fairseq's FP16Optimizer but for its copies, gradient by gradient and weight by weight: FlatAdam makes them.

    Gradients of the scaled loss stay in the parameters, FlatAdam collects them in float32, and the scale is part of the
    factor it multiplies them with. Under --bf16 there is no scale. The state is laid out as fairseq's: one flat entry,
    or an entry a parameter with --fp16-no-flatten-grads and --bf16.
    """

    @classmethod
    def build_optimizer(cls, cfg, params, **kwargs) -> FlatFP16Optimizer:
        """cfg: fairseq's whole config; params: the parameters of a model in half precision."""
        fp32_optimizer = optim.build_optimizer(cfg.optimizer, params)
        adam = fp32_optimizer.optimizer
        adam.absent_is_zero = True
        adam.merge = not (cfg.common.bf16 or cfg.common.fp16_no_flatten_grads)
        return cls(cfg, params, fp32_optimizer, [part.flat.weights for part in adam.parts], **kwargs)

    def shard(self, group) -> None:
        """FlatAdam.shard; float32 weights of others' shards go."""
        self.optimizer.shard(group)
        self.fp32_params = [part.flat.weights for part in self.optimizer.parts]

    def _sync_fp16_grads_to_fp32(self) -> None:
        """Nothing to do: FlatAdam collects them."""

    def _sync_fp32_params_to_fp16(self) -> None:
        """Nothing to do: FlatAdam has done it."""

    def zero_grad(self) -> None:
        """Drops the gradients; the next ones are those of a loss times the loss scale."""
        self.fp32_optimizer.zero_grad()
        self._multiply_factor = 1.0 if self.scaler is None else 1.0 / float(self.scaler.loss_scale)


@register_optimizer(NAME, dataclass=FairseqAdamConfig)
class DeepnetAdam(FairseqOptimizer):
    """FlatAdam under fairseq's interface."""

    half_precision = FlatFP16Optimizer

    def __init__(self, cfg: FairseqAdamConfig, params):
        super().__init__(cfg)
        whole = cfg._get_parent() if hasattr(cfg, "_get_parent") else None
        if whole is not None:
            check_settings(lambda section, key: whole.get(section, {}).get(key))
        self._optimizer = FlatAdam(list(params), **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict:
        """What is given now and replaces what a checkpoint holds."""
        return settings(self.cfg)

    def shard(self, group) -> None:
        """--zero-sharding os: each process of `group` keeps the state of its share; before the first update."""
        self.optimizer.shard(group)

    @property
    def _multiply_factor(self) -> float | Tensor:
        """By fairseq's name for it: what turns the gradients in the parameters into those that count."""
        return self.optimizer.factor

    def multiply_grads(self, c: float | Tensor) -> None:
        """Multiplies all gradients by c, which is kept as a number until the step."""
        self.optimizer.factor = self.optimizer.factor * c

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn=None) -> Tensor:
        """The L2 norm of all gradients before clipping, (); a max_norm of 0 or less clips nothing."""
        norm = self.optimizer.norm()
        if aggregate_norm_fn is not None:
            norm = aggregate_norm_fn(norm)
        if max_norm > 0:
            self.multiply_grads((float(max_norm) / (norm + 1e-6)).clamp_(max=1))
        return norm

    def zero_grad(self) -> None:
        """Drops the gradients, once; fairseq's does it twice."""
        self.optimizer.zero_grad()


# what a checkpoint says of its optimiser, and fairseq compares when it resumes: runs may switch between the two
DeepnetAdam.__name__ = FairseqAdam.__name__
FlatFP16Optimizer.__name__ = FP16Optimizer.__name__


def average_together(original, ema: EMA, new_model, updates=None):
    """The average of float32 weights (--store-ema) in a few operations instead of some for every tensor.

    The numbers are fairseq's to the bit, but for matrices that have several names: they are averaged once, where
    fairseq averages them once a name. Other averages, and those of other tensors, are made fairseq's way.
    """
    average, new = ema.model.state_dict(), new_model.state_dict()
    kept = ema.fp32_params if ema.config.ema_fp32 else average
    if ema.skip_keys or not _alike(kept, new) or not _alike(average, new, any_type=True):
        return original(ema, new_model, updates)
    owners = {(value.data_ptr(), value.shape): name for name, value in kept.items() if "version" not in name}
    names = list(owners.values())
    for start in range(0, len(names), TOGETHER):
        part = names[start : start + TOGETHER]
        sums = [kept[name] for name in part]
        torch._foreach_mul_(sums, ema.decay)
        torch._foreach_add_(sums, [new[name].float() for name in part], alpha=1 - ema.decay)
    if ema.config.ema_fp32:
        names = [name for name in kept if "version" not in name]
        torch._foreach_copy_([average[name] for name in names], [kept[name] for name in names])


def _alike(ours: dict, theirs: dict, any_type: bool = False) -> bool:
    """The same names and shapes, and ours in float32."""
    return ours.keys() == theirs.keys() and all(
        value.shape == theirs[name].shape and (any_type or value.dtype == torch.float32 or "version" in name)
        for name, value in ours.items()
    )
