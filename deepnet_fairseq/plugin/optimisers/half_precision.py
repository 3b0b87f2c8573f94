"""fairseq's half precision (`--fp16`, `--bf16`, `--amp`), which also runs on a CPU and resumes bit for bit.

With --amp, fairseq divides gradients by the loss scale twice; DeepAMP does it once.
"""

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
# (owner, attribute) of CUDA calls that fairseq makes without checking for a GPU -> their replacement on a CPU
ON_CPU = {
    (torch.cuda, "current_device"): lambda: None,  # which is also the device.index of a tensor on the CPU
    (torch.Tensor, "cuda"): lambda tensor: tensor,
    (torch.cuda.amp, "GradScaler"): functools.partial(torch.amp.GradScaler, "cpu"),
    (torch.cuda.amp, "autocast"): functools.partial(torch.amp.autocast, "cpu", torch.float16),
}


def warn_on_cpu(trainer) -> None:
    """Log a warning, once for each trainer, if it trains with --fp16 or --amp on a CPU, where that is seldom faster."""
    flag = "--fp16" if trainer.cfg.common.fp16 else "--amp"
    if _is_half_on_cpu(trainer) and flag not in trainer._warn_once and agreement.is_first():
        trainer._warn_once.add(flag)  # a resume builds the optimiser again
        logger.warning(f"{flag} on a CPU: what a GPU would compute, seldom as fast as fp32; leave {flag} out for fp32")


@contextlib.contextmanager
def without_cuda_calls(trainer) -> Iterator[None]:
    """Let fairseq's half precision run on a CPU while the context lasts; do nothing for any other training.

    fairseq calls functions of CUDA in the middle of its training step, where no subclass can replace them. The context
    replaces them by those of ON_CPU, for the whole process.
    """
    if not _is_half_on_cpu(trainer):
        yield
        return
    originals = {(owner, name): getattr(owner, name) for owner, name in ON_CPU}
    try:
        _set_attributes(ON_CPU)
        yield
    finally:
        _set_attributes(originals)


def _is_half_on_cpu(trainer) -> bool:
    """Return whether a training is on a CPU with --fp16 or --amp; --bf16 needs no CUDA call."""
    return trainer.device.type == "cpu" and (trainer.cfg.common.fp16 or trainer.cfg.common.amp)


def _set_attributes(values: dict) -> None:
    """Set attributes of several objects; values: {(object, name of its attribute): value}."""
    for (owner, name), value in values.items():
        setattr(owner, name, value)


class ExactState:
    """Mixin for fairseq's optimisers for half precision, which also saves and loads what they lose at a resume.

    fairseq's optimisers lose the float32 weights and the counts of the loss scale (float32_weights.py).
    """

    def state_dict(self) -> dict:
        """Return fairseq's state, and add the float32 weights and the counts of the loss scale."""
        return float32_weights.with_weights(self, super().state_dict())

    def load_state_dict(self, state_dict: dict, optimizer_overrides=None) -> None:
        """Load what state_dict returned, or the state that fairseq's own class has saved.

        optimizer_overrides: fairseq's, settings that replace those of the state.
        """
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
        # with a window fairseq looks for it under a name that is no flag, and fails; so it is set below instead
        cfg.common.amp_scale_window = None
        try:
            super().__init__(cfg, params, fp32_optimizer, **kwargs)
        finally:
            cfg.common.amp_scale_window = window
        if window is not None:
            self.scaler.set_growth_interval(window)

    def step(self) -> None:
        """Make an update with the gradients that clip_grad_norm has unscaled.

        torch's GradScaler unscales in step, unless unscale_ was called for the same optimiser object. fairseq passes
        torch's optimiser to unscale_ and its own wrapper to step, so that Adam sees gradients divided by the scale
        twice. Here both get torch's, self.optimizer.
        """
        self.scaler.step(self.optimizer)
        self.scaler.update()


# checkpoints hold the class's name, and fairseq compares it when it resumes
DeepFP16.__name__ = FP16Optimizer.__name__
DeepMemoryEfficientFP16.__name__ = MemoryEfficientFP16Optimizer.__name__
DeepAMP.__name__ = AMPOptimizer.__name__


def build_optimizer(cfg, params: list):
    """Build the optimiser for half precision that the flags ask for.

    The result is a wrapper around the optimiser of --optimizer. With --fp16 or --bf16 the class of that optimiser may
    have a wrapper of its own, its attribute `half_precision`, as DeepnetAdam has. cfg: fairseq's whole config; params:
    the model's trained parameters. Raises a UserError for an optimiser that supports half precision in another form
    only: without flat gradients, or with float32 weights (not --memory-efficient-fp16 or -bf16).
    """
    common = cfg.common
    name = cfg.optimizer._name
    if common.amp:
        optimizer_class = DeepAMP
    elif common.memory_efficient_fp16 or common.memory_efficient_bf16:
        optimizer_class = DeepMemoryEfficientFP16
    else:
        optimizer_class = getattr(OPTIMIZER_REGISTRY.get(name), "half_precision", DeepFP16)

    try:
        return optimizer_class.build_optimizer(cfg, params)
    except (RuntimeError, ValueError) as error:
        half = "bf16" if common.bf16 else "fp16"
        if "does not support flat params" in str(error):
            raise UserError(f"--optimizer {name}", f"with --{half} add --fp16-no-flatten-grads") from error
        if "Unsupported optimizer" in str(error):
            raise UserError(f"--memory-efficient-{half}", f"not with --optimizer {name}: take --{half}") from error
        raise


def gradient_scale(optimizer: Any) -> float | Tensor:
    """Return the factor by which the parameters' `grad` must be multiplied to be the gradient of the mean loss.

    The factor undoes the loss scale, and divides by the number of tokens. FP16Optimizer, MemoryEfficientFP16Optimizer
    and deepnet_adam multiply no earlier than in their step, and keep the factor in _multiply_factor. AMPOptimizer has
    divided by the number of tokens already; any other optimiser has multiplied already, and its factor is 1.0.
    """
    if isinstance(optimizer, AMPOptimizer):
        return 1 / optimizer.scaler.get_scale()
    return getattr(optimizer, "_multiply_factor", 1.0)
