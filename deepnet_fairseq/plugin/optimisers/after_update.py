"""Let a stabilisation method change the weights after each update, by its function after_update."""

from __future__ import annotations

import torch
from fairseq.optim import FairseqOptimizer, FP16Optimizer, MemoryEfficientFP16Optimizer
from torch import nn

from ...errors import UserError
from . import float32_weights
from .deepnet_adam import HalfPrecisionOptimizer


@torch.no_grad()
def apply_after_update(optimizer: FairseqOptimizer, model: nn.Module) -> None:
    """Call model.after_update, if the model has it, with {name of a parameter: its weights}; it changes them in place.

    A DeepModel has it if its method does. In half precision the weights are the optimiser's in float32, which are then
    copied to the model again; under ZeRO each process has those of its share alone. Raises a UserError with
    --memory-efficient-fp16 or --memory-efficient-bf16, which keep no float32 weights.
    """
    while hasattr(model, "module"):  # DistributedDataParallel's wrapper
        model = model.module
    after_update = getattr(model, "after_update", None)
    if after_update is None:
        return
    if isinstance(optimizer, MemoryEfficientFP16Optimizer):
        raise UserError("--memory-efficient-fp16, -bf16", "not with a method that changes weights after each update")

    # updated: {parameter of the model: the tensor that the optimiser has updated for it}
    names = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
    in_half_precision = isinstance(optimizer, FP16Optimizer)
    if isinstance(optimizer, HalfPrecisionOptimizer):  # an FP16Optimizer that under ZeRO updates some parameters only
        updated = dict(zip(optimizer.own_parameters, optimizer.weights, strict=True))
    elif in_half_precision:
        updated = dict(zip(optimizer.fp16_params, float32_weights.weights(optimizer), strict=True))
    else:
        updated = {parameter: parameter.data for parameter in names}

    after_update({name: updated[parameter] for parameter, name in names.items() if parameter in updated})
    if in_half_precision:
        optimizer._sync_fp32_params_to_fp16()
