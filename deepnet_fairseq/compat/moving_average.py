"""fairseq's moving average of the weights (--store-ema) in a few operations instead of some for every tensor."""

from __future__ import annotations

import functools

import torch
from fairseq.models.ema.ema import EMA


def average_all_at_once() -> None:
    """The same numbers to the bit; a model whose tensors are not those of its average takes fairseq's way."""
    original = EMA._step_internal
    if not hasattr(original, "__wrapped__"):
        EMA._step_internal = _at_once(original)


def _at_once(original):
    @functools.wraps(original)
    def _step_internal(ema: EMA, new_model, updates=None):
        average, new = ema.model.state_dict(), new_model.state_dict()
        kept = ema.fp32_params if ema.config.ema_fp32 else average
        names = [name for name in new if "version" not in name]
        plain = not ema.skip_keys and new.keys() == average.keys() and all(
            kept.get(name) is not None and kept[name].is_floating_point() and kept[name].shape == new[name].shape
            for name in names
        )  # fmt: skip
        if not plain:
            return original(ema, new_model, updates)
        sums = [kept[name] for name in names]
        torch._foreach_mul_(sums, ema.decay)
        torch._foreach_add_(sums, [new[name].to(kept[name].dtype) for name in names], alpha=1 - ema.decay)
        if ema.config.ema_fp32:
            torch._foreach_copy_([average[name] for name in names], sums)

    return _step_internal
