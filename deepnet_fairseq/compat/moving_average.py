"""fairseq's moving average of the weights (--store-ema) in a few operations instead of some for every tensor."""

from __future__ import annotations

import functools

import torch
from fairseq.models.ema.ema import EMA

TOGETHER = 512  # tensors, whose float32 copies are there at one moment


def average_all_at_once() -> None:
    """Wraps EMA._step_internal, for float32; other averages, and those of other tensors, are made fairseq's way.

    The numbers are fairseq's to the bit, but for matrices that have several names: they are averaged once, where
    fairseq averages them once a name.
    """
    original = EMA._step_internal
    if not hasattr(original, "__wrapped__"):
        EMA._step_internal = _at_once(original)


def _at_once(original):
    @functools.wraps(original)
    def _step_internal(ema: EMA, new_model, updates=None):
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

    return _step_internal


def _alike(ours: dict, theirs: dict, any_type: bool = False) -> bool:
    """The same names and shapes, and ours in float32."""
    return ours.keys() == theirs.keys() and all(
        value.shape == theirs[name].shape and (any_type or value.dtype == torch.float32 or "version" in name)
        for name, value in ours.items()
    )
