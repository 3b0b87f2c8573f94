"""Save and restore an optimiser's float32 weights and the counts of its loss scale, bit for bit.

fairseq rebuilds float32 weights from those in half precision, which have lost the lower bits, and forgets when the loss
scale was changed. The optimisers here are fairseq's for half precision (FP16Optimizer, MemoryEfficientFP16Optimizer,
AMPOptimizer) and their subclasses in half_precision.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

# keys in the state of an optimiser for half precision, beside fairseq's loss_scale
WEIGHTS, SCALER = "fp32_params", "loss_scaler"


def weights(optimizer) -> list[Tensor]:
    """Return an optimiser's float32 weights in its parameters' order and shapes; [] if it keeps none."""
    if hasattr(optimizer, "float32_weights"):
        return optimizer.float32_weights()
    fp32_params = getattr(optimizer, "fp32_params", None)
    if fp32_params is None:
        return []
    if not isinstance(fp32_params, dict):
        return [param.data for param in fp32_params]

    # the flat layout of FP16Optimizer: {index of the device: one tensor for all weights}
    (flat,) = fp32_params.values()
    half_params = getattr(optimizer, "fp16_params", ())
    sizes = [param.numel() for param in half_params]
    parts = flat.data[: sum(sizes)].split(sizes)
    return [part.view(param.shape) for part, param in zip(parts, half_params, strict=True)]


def with_weights(optimizer, state: dict) -> dict:
    """Add the float32 weights, and when the loss scale was changed, to an optimiser's state, and return it."""
    values = weights(optimizer)
    if values:
        state[WEIGHTS] = values
    counts = _counts(getattr(optimizer, "scaler", None))
    if counts:
        state[SCALER] = counts
    return state


def _counts(scaler) -> dict:
    """Return the counts of a loss scaler, such as when it last changed the scale and the overflows since; {} for None.

    scaler: torch's GradScaler, or fairseq's DynamicLossScaler.
    """
    if scaler is None:
        return {}
    if hasattr(scaler, "state_dict"):  # torch's
        return scaler.state_dict()
    return {name: value for name, value in vars(scaler).items() if name.startswith("_")}  # fairseq's counts


def load_weights(optimizer, state_dict: dict) -> None:
    """Restore what `with_weights` added to state_dict.

    The model is loaded already, in half precision. The float32 weights are restored only if all of them round to its
    weights.
    """
    scaler = getattr(optimizer, "scaler", None)
    counts = state_dict.get(SCALER) or {}
    if counts and hasattr(scaler, "load_state_dict"):
        scaler.load_state_dict(counts)
    elif counts and scaler is not None and counts.keys() == _counts(scaler).keys():
        vars(scaler).update(counts)

    half_params = getattr(optimizer, "fp16_params", [])
    saved = state_dict.get(WEIGHTS) or []
    if getattr(optimizer, "fp32_params", None) is None or len(half_params) != len(saved):
        return
    for param, value in zip(half_params, saved, strict=True):
        if not torch.equal(value.to(param), param.data):
            return  # the weights of another model, or of a model of which only a part was loaded

    if hasattr(optimizer, "load_float32_weights"):
        optimizer.load_float32_weights(saved)
    else:
        with torch.no_grad():
            own = weights(optimizer)
            loaded = [value.to(target.device) for target, value in zip(own, saved, strict=True)]
            torch._foreach_copy_(own, loaded)
