"""Half precision of fairseq, `--fp16`, `--bf16`, `--amp`: resumed bit for bit, on a CPU too, AMP unscaled once."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any

import torch
from fairseq.optim import OPTIMIZER_REGISTRY, AMPOptimizer, FP16Optimizer, MemoryEfficientFP16Optimizer
from torch import Tensor

from ...errors import UserError
from ..distributed import agreement
from . import float32_weights

logger = logging.getLogger(__name__)
# CUDA calls that fairseq makes without checking for a GPU -> their replacement on a CPU
ON_CPU = {
    (torch.cuda, "current_device"): lambda: None,  # as a parameter's device.index
    (torch.Tensor, "cuda"): lambda tensor: tensor,
    (torch.cuda.amp, "GradScaler"): functools.partial(torch.amp.GradScaler, "cpu"),
    (torch.cuda.amp, "autocast"): functools.partial(torch.amp.autocast, "cpu", torch.float16),
}


def warn_on_cpu(trainer) -> None:
    """Warn once that half precision makes nothing faster on a CPU."""
    flag = "--fp16" if trainer.cfg.common.fp16 else "--amp"
    if _on_cpu(trainer) and flag not in trainer._warn_once and agreement.is_first():
        trainer._warn_once.add(flag)  # a resume builds the optimiser again
        logger.warning(f"{flag} on a CPU: what a GPU would compute, seldom as fast as fp32")


@contextlib.contextmanager
def on_cpu(trainer) -> Iterator[None]:
    """Let fairseq's half precision run on a CPU while the context lasts; on a GPU do nothing.

    fairseq calls torch.cuda in the middle of its training step, where no subclass can come in between.
    """
    if not _on_cpu(trainer):
        yield
        return
    originals = {(owner, name): getattr(owner, name) for owner, name in ON_CPU}
    try:
        _set(ON_CPU)
        yield
    finally:
        _set(originals)


def _on_cpu(trainer) -> bool:
    """Return whether a training is in half precision, with --fp16 or --amp, on a CPU."""
    return trainer.device.type == "cpu" and (trainer.cfg.common.fp16 or trainer.cfg.common.amp)


def _set(values: dict) -> None:
    """Set attributes; values: (owner, attribute's name) -> value."""
    for (owner, name), value in values.items():
        setattr(owner, name, value)


class ExactState:
    """Mixin of fairseq's optimisers for half precision: float32 weights and loss scale come back as they were saved."""

    def state_dict(self) -> dict:
        """Return fairseq's state, with the float32 weights and the counts of the loss scale."""
        return float32_weights.with_weights(self, super().state_dict())

    def load_state_dict(self, state_dict: dict, optimizer_overrides=None) -> None:
        """Load what state_dict returned, or fairseq's state alone."""
        super().load_state_dict(state_dict, optimizer_overrides)
        float32_weights.load_weights(self, state_dict)


class DeepFP16(ExactState, FP16Optimizer):
    """`--fp16` and `--bf16`."""


class DeepMemoryEfficientFP16(ExactState, MemoryEfficientFP16Optimizer):
    """`--memory-efficient-fp16` and `--memory-efficient-bf16`."""


class DeepAMP(ExactState, AMPOptimizer):
    """`--amp`."""

    def __init__(self, cfg, params, fp32_optimizer, **kwargs):
        window = cfg.common.amp_scale_window
        cfg.common.amp_scale_window = None  # fairseq looks the window up under a name that is no flag, and fails
        try:
            super().__init__(cfg, params, fp32_optimizer, **kwargs)
        finally:
            cfg.common.amp_scale_window = window
        if window is not None:
            self.scaler.set_growth_interval(window)

    def step(self) -> None:
        """Make an update with the gradients that clip_grad_norm has unscaled.

        A scaler notes by the optimiser's identity whose gradients it has unscaled. fairseq passes torch's optimiser to
        unscale_ and its own wrapper to step, so that Adam would see gradients divided by the scale twice.
        """
        self.scaler.step(self.optimizer)
        self.scaler.update()


# checkpoints hold the class's name, and fairseq compares it when it resumes
DeepFP16.__name__ = FP16Optimizer.__name__
DeepMemoryEfficientFP16.__name__ = MemoryEfficientFP16Optimizer.__name__
DeepAMP.__name__ = AMPOptimizer.__name__


def build(cfg, params: list):
    """Build the optimiser for half precision by the flags, or by the registered optimiser's `half_precision`.

    cfg: fairseq's whole config. Raises a UserError for an optimiser that does not support half precision.
    """
    common = cfg.common
    name = cfg.optimizer._name
    if common.amp:
        kind = DeepAMP
    elif common.memory_efficient_fp16 or common.memory_efficient_bf16:
        kind = DeepMemoryEfficientFP16
    else:
        kind = getattr(OPTIMIZER_REGISTRY.get(name), "half_precision", DeepFP16)

    try:
        return kind.build_optimizer(cfg, params)
    except (RuntimeError, ValueError) as error:
        half = "bf16" if common.bf16 else "fp16"
        if "does not support flat params" in str(error):
            raise UserError(f"--optimizer {name}: with --{half} add --fp16-no-flatten-grads") from error
        if "Unsupported optimizer" in str(error):
            raise UserError(f"--memory-efficient-{half}: not with --optimizer {name}: take --{half}") from error
        raise


def gradient_scale(optimizer: Any) -> float | Tensor:
    """Return the factor that turns the gradients at hand into those of the mean loss.

    fairseq's optimisers for half precision and deepnet_adam multiply later, and keep it in _multiply_factor.
    """
    if isinstance(optimizer, AMPOptimizer):
        return 1 / optimizer.scaler.get_scale()
    return getattr(optimizer, "_multiply_factor", 1.0)
