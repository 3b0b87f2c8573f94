"""Processor modes for very deep models, optimisers in half precision, and the moving average of the weights."""

from __future__ import annotations

import torch
from fairseq.models.ema.ema import EMA
from fairseq.optim import OPTIMIZER_REGISTRY

TOGETHER = 512  # tensors, whose float32 copies are there at one moment


def flush_denormals() -> None:
    """On CPU, numbers below 1.2e-38 become 0.

    The gradients of a deep Post-LN model underflow into denormals, which x86 handles in microcode: the backward pass
    of a 1,000-layer model takes 15.7 s with them and 1.9 s without.
    """
    torch.set_flush_denormal(True)


def build_half_precision(original, cfg, params, **kwargs):
    """The one that the registered optimiser names as its `half_precision`, as deepnet_adam does."""
    own = getattr(OPTIMIZER_REGISTRY.get(cfg.optimizer._name), "half_precision", None)
    return (original if own is None else own.build_optimizer)(cfg, params, **kwargs)


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
