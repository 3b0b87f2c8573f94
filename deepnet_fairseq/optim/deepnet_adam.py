"""`--optimizer deepnet_adam`: fairseq's adam, its flags, numbers and checkpoints, for tens of thousands of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from torch import Tensor

from ..errors import UserError
from .adam_flags import settings
from .flat_adam import FlatAdam
from .half_precision import FlatFP16Optimizer

NAME = "deepnet_adam"
# (section of fairseq's config, setting): the values it is refused with, and why
REFUSED = {
    ("optimizer", "use_old_adam"): ((True,), "there is one Adam here; drop the flag"),
    ("optimizer", "fp16_adam_stats"): ((True,), "the moments are kept in float32; drop the flag"),
    ("common", "tpu"): ((True,), "runs on CPU and GPU"),
    ("common", "amp"): ((True,), "take --fp16 or --bf16, or --optimizer adam"),
    ("common", "memory_efficient_fp16"): ((True,), "float32 weights are kept; take --fp16, or --optimizer adam"),
    ("common", "memory_efficient_bf16"): ((True,), "float32 weights are kept; take --bf16, or --optimizer adam"),
    ("optimization", "use_bmuf"): ((True,), "take --optimizer adam"),
    ("distributed_training", "ddp_backend"): (
        ("fully_sharded", "slowmo"),
        "it updates flat weights; take --optimizer adam, or pytorch_ddp with --zero-sharding os",
    ),
}


def check_settings(setting: Callable[[str, str], object]) -> None:
    """UserError for the first setting that deepnet_adam does not go with; setting(section, key): its value."""
    for (section, key), (values, reason) in REFUSED.items():
        value = setting(section, key)
        if value in values:
            given = "" if value is True else f" {value}"
            raise UserError(f"--{key.replace('_', '-')}{given}: not with --optimizer {NAME}: {reason}")


@dataclass
class DeepnetAdamConfig(FairseqAdamConfig):
    """The flags of fairseq's adam."""


@register_optimizer(NAME, dataclass=DeepnetAdamConfig)
class DeepnetAdam(FairseqOptimizer):
    """FlatAdam under fairseq's interface."""

    half_precision = FlatFP16Optimizer

    def __init__(self, cfg: DeepnetAdamConfig, params):
        super().__init__(cfg)
        whole = cfg._get_parent() if hasattr(cfg, "_get_parent") else None
        if whole is not None:
            check_settings(lambda section, key: whole.get(section, {}).get(key))
        self._optimizer = FlatAdam(list(params), **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict:
        """What is given now and replaces what a checkpoint holds."""
        return settings(self.cfg)

    def share(self, group) -> None:
        """--zero-sharding os: each process of `group` keeps the state of its share; before the first update."""
        self.optimizer.share(group)

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
