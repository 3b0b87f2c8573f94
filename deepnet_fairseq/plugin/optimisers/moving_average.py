"""The moving average of a model's weights (--store-ema), in a few operations instead of some for each tensor."""

from __future__ import annotations

import torch
from fairseq.models.ema.ema import EMA

TOGETHER = 512  # tensors whose float32 copies exist at a time


class MovingAverage(EMA):
    """fairseq's EMA and its numbers, which at 500L-500L take a fifth of a step more.

    A matrix that has several names is averaged once; fairseq's averages it once for each name.
    """

    def _step_internal(self, new_model, updates=None):
        average, new = self.model.state_dict(), new_model.state_dict()
        kept = self.fp32_params if self.config.ema_fp32 else average
        names = [name for name in kept if "version" not in name]
        if self.skip_keys or kept.keys() != new.keys() or any(kept[name].dtype != torch.float32 for name in names):
            return super()._step_internal(new_model, updates)
        once = list({(kept[name].data_ptr(), kept[name].shape): name for name in names}.values())
        for start in range(0, len(once), TOGETHER):
            part = once[start : start + TOGETHER]
            sums = [kept[name] for name in part]
            torch._foreach_mul_(sums, self.decay)
            torch._foreach_add_(sums, [new[name].float() for name in part], alpha=1 - self.decay)
        if self.config.ema_fp32:
            torch._foreach_copy_([average[name] for name in names], [kept[name] for name in names])
