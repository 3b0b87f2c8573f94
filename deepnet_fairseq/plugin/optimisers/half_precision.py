"""fairseq's half precision, `--fp16` and `--amp`: on a CPU too, slowly, and AMP's gradients unscaled once."""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from fairseq.optim import OPTIMIZER_REGISTRY, AMPOptimizer
from torch import Tensor

from ...errors import UserError
from ..distributed import agreement

logger = logging.getLogger(__name__)
# what fairseq takes of CUDA without asking whether it trains there: what a CPU gives
ON_CPU = {
    (torch.cuda, "current_device"): lambda: None,  # as a parameter's device.index
    (torch.Tensor, "cuda"): lambda tensor: tensor,
    (torch.cuda.amp, "GradScaler"): functools.partial(torch.amp.GradScaler, "cpu"),
    (torch.cuda.amp, "autocast"): functools.partial(torch.amp.autocast, "cpu", torch.float16),
}


def build_on_cpu(original, trainer) -> None:
    """An optimiser of any device, and a line that half precision makes nothing faster here."""
    flag = "--fp16" if trainer.cfg.common.fp16 else "--amp"
    if _on_cpu(trainer) and flag not in trainer._warn_once and agreement.is_first():
        trainer._warn_once.add(flag)  # a resume builds it again
        logger.warning(f"{flag} on a CPU: what a GPU would compute, seldom as fast as fp32")
    step_on_cpu(original, trainer)


def step_on_cpu(original, trainer, *args, **kwargs):
    """A call of fairseq's trainer in half precision, on a CPU as on a GPU."""
    if not _on_cpu(trainer):
        return original(trainer, *args, **kwargs)
    kept = {place: getattr(*place) for place in ON_CPU}
    try:
        _set(ON_CPU)
        return original(trainer, *args, **kwargs)
    finally:
        _set(kept)


def _on_cpu(trainer) -> bool:
    return trainer.device.type == "cpu" and (trainer.cfg.common.fp16 or trainer.cfg.common.amp)


def _set(values: dict) -> None:
    for (owner, name), value in values.items():
        setattr(owner, name, value)


def build_own(original, cfg, params, **kwargs):
    """The one that the registered optimiser names as its `half_precision`, as deepnet_adam does."""
    own = getattr(OPTIMIZER_REGISTRY.get(cfg.optimizer._name), "half_precision", None)
    return (original if own is None else own.build_optimizer)(cfg, params, **kwargs)


def explain_refusal(original, cfg, params, **kwargs):
    """UserError for optimisers that cannot do what half precision asks of them."""
    try:
        return original(cfg, params, **kwargs)
    except (RuntimeError, ValueError) as error:
        half = "bf16" if cfg.common.bf16 else "fp16"
        if "does not support flat params" in str(error):
            raise UserError(f"--optimizer {cfg.optimizer._name}: with --{half} add --fp16-no-flatten-grads") from error
        if "Unsupported optimizer" in str(error):
            raise UserError(
                f"--memory-efficient-{half}: not with --optimizer {cfg.optimizer._name}: take --{half}"
            ) from error
        raise


def begin_amp(original, optimizer, cfg, *args, **kwargs) -> None:
    """With --amp-scale-window, which fairseq looks up under a name that is no flag."""
    window, cfg.common.amp_scale_window = cfg.common.amp_scale_window, None
    try:
        original(optimizer, cfg, *args, **kwargs)
    finally:
        cfg.common.amp_scale_window = window
    if window is not None:
        optimizer.scaler.set_growth_interval(window)


def step_amp(optimizer) -> None:
    """An update with the gradients that clip_grad_norm has unscaled.

    A scaler knows by the object whose gradients those are; fairseq gives it torch's optimiser there and its own around
    that here, and Adam would see them divided by the scale twice.
    """
    optimizer.scaler.step(optimizer.optimizer)
    optimizer.scaler.update()


def gradient_scale(optimizer: Any) -> float | Tensor:
    """What turns the gradients at hand into those of the mean loss.

    Whoever multiplies later has _multiply_factor, as fairseq's optimisers for half precision and deepnet_adam.
    """
    if isinstance(optimizer, AMPOptimizer):
        return 1 / optimizer.scaler.get_scale()
    return getattr(optimizer, "_multiply_factor", 1.0)
