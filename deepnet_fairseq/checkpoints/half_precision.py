"""What fairseq leaves out of the state of its optimisers for half precision, so that no run goes on as it was.

The float32 weights: rebuilt from those in half precision they have lost their lower bits. The counts of the loss
scaler: when the scale was last changed, and how many updates overflowed since.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.optim.fp16_optimizer import _FP16OptimizerMixin, _MemoryEfficientFP16OptimizerMixin
from torch import Tensor

from ..compat.wrapping import wrap
from ..optim.flat_adam import FlatAdam

WEIGHTS, SCALER = "fp32_params", "loss_scaler"  # keys beside fairseq's loss_scale


def install() -> None:
    """Patches fairseq's optimisers for half precision; may be called again."""
    for kind in (_FP16OptimizerMixin, _MemoryEfficientFP16OptimizerMixin, AMPOptimizer):
        wrap(kind, "state_dict", _state_dict)
        wrap(kind, "load_state_dict", _load_state_dict)


def weights(optimizer) -> list[Tensor]:
    """The float32 weights of an optimiser for half precision, in its parameters' order and shapes; [] without any."""
    params, half = getattr(optimizer, "fp32_params", None), getattr(optimizer, "fp16_params", ())
    if params is None:
        return []
    adam = optimizer.optimizer
    if isinstance(adam, FlatAdam):
        return adam.weights()
    if not isinstance(params, dict):
        return [param.data for param in params]
    found, offsets = [], defaultdict(int)  # by device, all of its parameters in one
    for param in half:
        start, device = offsets[param.device.index], param.device.index
        found.append(params[device].data[start : start + param.numel()].view(param.shape))
        offsets[device] = start + param.numel()
    return found


def _state_dict(original, optimizer) -> dict:
    state = original(optimizer)
    if values := weights(optimizer):
        state[WEIGHTS] = values
    if counts := _counts(getattr(optimizer, "scaler", None)):
        state[SCALER] = counts
    return state


def _counts(scaler) -> dict:
    """torch's scaler tells them itself; fairseq's has them as _iter, _last_overflow_iter, ..."""
    if scaler is None:
        return {}
    if hasattr(scaler, "state_dict"):
        return scaler.state_dict()
    return {name: value for name, value in vars(scaler).items() if name.startswith("_")}


def _load_state_dict(original, optimizer, state_dict, optimizer_overrides=None) -> None:
    original(optimizer, state_dict, optimizer_overrides)
    scaler, counts = getattr(optimizer, "scaler", None), state_dict.get(SCALER) or {}
    if counts and hasattr(scaler, "load_state_dict"):
        scaler.load_state_dict(counts)
    elif counts and scaler is not None and counts.keys() == _counts(scaler).keys():
        vars(scaler).update(counts)
    saved = state_dict.get(WEIGHTS) or []
    if getattr(optimizer, "fp32_params", None) is None or not _round_to(optimizer.fp16_params, saved):
        return
    if isinstance(optimizer.optimizer, FlatAdam):
        optimizer.optimizer.load_weights(saved)
    else:
        with torch.no_grad():
            ours = weights(optimizer)
            torch._foreach_copy_(ours, [given.to(value.device) for value, given in zip(ours, saved, strict=True)])


def _round_to(params: list[Tensor], saved: list[Tensor]) -> bool:
    """Are these the float32 weights of those that were loaded? Not if another model was, or a part of one."""
    return len(params) == len(saved) and all(
        param.shape == value.shape and torch.equal(value.to(param), param.data)
        for param, value in zip(params, saved, strict=True)
    )
