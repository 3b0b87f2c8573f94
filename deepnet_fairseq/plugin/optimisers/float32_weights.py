"""Save and restore an optimiser's float32 weights and the counts of its loss scale, bit for bit.

fairseq rebuilds float32 weights from those in half precision, which have lost the lower bits, and forgets when the loss
scale was changed. The optimisers here are fairseq's for half precision (FP16Optimizer, MemoryEfficientFP16Optimizer,
AMPOptimizer) and their subclasses in half_precision.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

# keys that this module adds to the state of an optimiser for half precision
WEIGHTS = "fp32_params"  # of the list that `weights` returns
SCALER = "loss_scaler"  # of the dict that _counts returns; fairseq saves the loss scale itself, under "loss_scale"


def weights(optimizer) -> list[Tensor]:
    """Return an optimiser's float32 weights in its parameters' order and shapes; [] if it keeps none."""
    if hasattr(optimizer, "float32_weights"):  # deepnet_adam's
        return optimizer.float32_weights()
    fp32_params = getattr(optimizer, "fp32_params", None)
    if fp32_params is None:
        return []
    if not isinstance(fp32_params, dict):
        return [param.data for param in fp32_params]

    # the flat layout of FP16Optimizer: {index of the device: one tensor for all weights}
    (flat,) = fp32_params.values()
    half_params = optimizer.fp16_params
    parts = flat.data.split([param.numel() for param in half_params])
    return [part.view(param.shape) for part, param in zip(parts, half_params, strict=True)]


def with_weights(optimizer, state: dict) -> dict:
    """Add the float32 weights and the counts of the loss scale to an optimiser's state, in place; return the state.

    state: what the optimiser's state_dict has returned.
    """
    values = weights(optimizer)
    if values:
        state[WEIGHTS] = values
    counts = _counts(getattr(optimizer, "scaler", None))
    if counts:
        state[SCALER] = counts
    return state


def _counts(scaler) -> dict:
    """Return what a loss scaler counts, by name, such as the update of the last overflow.

    scaler: torch's GradScaler, or fairseq's DynamicLossScaler; {} for None, an optimiser without a loss scale.
    """
    if scaler is None:
        return {}
    if hasattr(scaler, "state_dict"):  # torch's
        return scaler.state_dict()
    return {name: value for name, value in vars(scaler).items() if name.startswith("_")}  # fairseq's counts


def load_weights(optimizer, state_dict: dict) -> None:
    """Restore the float32 weights and the counts of the loss scale from a state to which `with_weights` added them.

    The model's weights are loaded already, in half precision. The float32 weights are restored only if all of them
    round to these.
    """
    scaler = getattr(optimizer, "scaler", None)
    counts = state_dict.get(SCALER) or {}
    if counts and hasattr(scaler, "load_state_dict"):  # torch's
        scaler.load_state_dict(counts)
    elif counts and scaler is not None and counts.keys() == _counts(scaler).keys():
        vars(scaler).update(counts)  # fairseq's, if it has the same counts as the one that was saved

    half_params = getattr(optimizer, "fp16_params", [])
    saved = state_dict.get(WEIGHTS) or []  # a float32 tensor for each parameter, as `weights` returns them
    if getattr(optimizer, "fp32_params", None) is None or len(half_params) != len(saved):
        return  # this optimiser keeps no float32 weights, or the state has none or those of another model
    for param, value in zip(half_params, saved, strict=True):
        if not torch.equal(value.to(param), param.data):
            return  # the weights of another model, or of a model of which only a part was loaded

    if hasattr(optimizer, "load_float32_weights"):  # deepnet_adam's, which may keep a part of them only
        optimizer.load_float32_weights(saved)
    else:
        with torch.no_grad():
            own = weights(optimizer)  # the optimiser's own memory, not copies
            loaded = [value.to(target.device) for target, value in zip(own, saved, strict=True)]
            torch._foreach_copy_(own, loaded)
