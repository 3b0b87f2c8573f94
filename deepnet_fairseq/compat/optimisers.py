"""fairseq's trainer names one optimiser for --fp16 and --bf16; deepnet_adam has its own."""

from __future__ import annotations

import functools

from fairseq.optim import OPTIMIZER_REGISTRY, FP16Optimizer


def bring_their_own_half_precision() -> None:
    """FP16Optimizer.build_optimizer makes the one that the registered optimiser names as its `half_precision`."""
    original = FP16Optimizer.build_optimizer.__func__
    if not hasattr(original, "__wrapped__"):
        FP16Optimizer.build_optimizer = classmethod(_own(original))


def _own(build):
    @functools.wraps(build)
    def build_optimizer(cls, cfg, params, **kwargs):
        own = getattr(OPTIMIZER_REGISTRY.get(cfg.optimizer._name), "half_precision", None)
        return build(cls, cfg, params, **kwargs) if own is None else own.build_optimizer(cfg, params, **kwargs)

    return build_optimizer
