"""Optimisers of a few small parameters: built as fairseq's trainer builds them, and called in its order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from fairseq import optim
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import DictConfig, OmegaConf
from torch import nn

from deepnet_fairseq.plugin.optimisers import half_precision
from deepnet_fairseq.plugin.optimisers.deepnet_adam import HalfPrecisionOptimizer

SHAPES = [(7, 5), (3,), (), (64, 64), (130,), (40, 16)]  # of the parameters: matrices, vectors and a single number
FULL_PRECISION_SHAPES = SHAPES[1:3]  # of the parameters that stay in float32
LEARNING_RATE = 1e-2
WARMUP = 10  # updates
CLIP_NORM = 0.7
GRADIENT_SCALE = 0.25  # as fairseq divides the gradients of a summed loss by the number of tokens
FP16 = {"fp16": True, "fp16_init_scale": 128, "fp16_scale_window": 4}  # the loss scale doubles after 4 good updates


class Precision(NamedTuple):
    """How a training keeps the parameters of its model."""

    dtype: torch.dtype  # of most parameters
    common: dict  # settings of the section "common" of fairseq's config


KINDS = {
    "fp32": Precision(torch.float32, {}),
    "fp16": Precision(torch.float16, FP16),
    "fp16, not flattened": Precision(torch.float16, FP16 | {"fp16_no_flatten_grads": True}),
    "bf16": Precision(torch.bfloat16, {"bf16": True}),
}
HALF = [kind for kind in KINDS if kind != "fp32"]  # kinds of half precision
OVERFLOWS = (6, 7, 15)  # updates with a gradient that overflows once the loss is scaled
OVERFLOWING = 60000.0  # a gradient near the largest number of fp16, 65504


def optimiser_config(name: str, common: dict | None = None, **adam) -> DictConfig:
    """Return fairseq's whole config with the optimiser `name`.

    common: settings of the section "common"; adam: settings of the optimiser that differ from `usual` below.
    """
    cfg = OmegaConf.structured(FairseqConfig)
    OmegaConf.set_struct(cfg, False)
    cfg.optimization.lr = [LEARNING_RATE]
    cfg.optimization.update_freq = [1]
    usual = {"adam_betas": "(0.9, 0.98)", "adam_eps": 1e-8, "weight_decay": 0.1}
    cfg.optimizer = {"_name": name} | usual | adam
    cfg.common.update(common or {})
    return cfg


def draw_parameters(dtype=torch.float32, shapes=SHAPES, seed: int = 0) -> list[nn.Parameter]:
    """Draw parameters of one type; a seed draws the same numbers for every type."""
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def model_parameters(kind: str) -> list[nn.Parameter]:
    """Draw parameters of one of KINDS, and behind them two that stay in float32 as those of FullPrecision slots do."""
    parameters = draw_parameters(KINDS[kind].dtype)
    in_full_precision = draw_parameters(torch.float32, FULL_PRECISION_SHAPES, seed=1)
    return parameters + in_full_precision


def build_optimiser(name: str, params: list[nn.Parameter], kind: str = "fp32", **adam):
    """Build the optimiser `name` of parameters of one of KINDS, within the wrapper for half precision in HALF.

    adam: settings of the optimiser, as optimiser_config takes them
    """
    cfg = optimiser_config(name, KINDS[kind].common, **adam)
    if kind == "fp32":
        return optim.build_optimizer(cfg.optimizer, params)
    return half_precision.build_optimizer(cfg, params)


def draw_gradients(params: list[nn.Parameter], update: int, overflow: bool = False) -> list[torch.Tensor]:
    """Draw the gradients of an update, a thousand times smaller in every third one.

    overflow: whether an element is so large that it becomes infinite in fp16 when the loss is scaled.
    """
    generator = torch.Generator().manual_seed(update)
    size = 1e-3 if update % 3 == 0 else 1.0
    drawn = [torch.randn(param.shape, generator=generator) * size for param in params]
    if overflow:
        drawn[3][0, 0] = OVERFLOWING  # of the largest matrix
    return drawn


def none_absent(update: int) -> tuple[int, ...]:
    """Return no places: every parameter has a gradient in every update. See `absent` of make_updates."""
    return ()


def make_updates(
    optimizer,
    params: list[nn.Parameter],
    updates: Iterable[int],
    absent: Callable[[int], tuple[int, ...]] = none_absent,
) -> list[float | str]:
    """Make updates by an optimiser's methods, called in the order of fairseq's trainer.

    The learning rate has a warm-up, and the gradients are clipped in every other update. The updates of OVERFLOWS
    overflow if the optimiser scales the loss. Return the gradient norm of each update, or the error's message where it
    overflows.

    updates: their numbers, from which the gradients are drawn; absent: number of an update -> places in `params` of the
    parameters that get no gradient
    """
    is_scaled = getattr(optimizer, "scaler", None) is not None
    norms: list[float | str] = []
    for update in updates:
        optimizer.set_lr(LEARNING_RATE * min(1.0, (update + 1) / WARMUP))
        optimizer.zero_grad()

        gradients = draw_gradients(params, update, overflow=is_scaled and update in OVERFLOWS)
        terms = []  # of a loss that has these gradients
        for place, (param, gradient) in enumerate(zip(params, gradients, strict=True)):
            if place not in absent(update):
                terms.append((param * gradient.to(param)).sum().float())
        if terms:
            optimizer.backward(sum(terms))

        optimizer.multiply_grads(GRADIENT_SCALE)
        max_norm = CLIP_NORM if update % 2 else 0.0  # 0 for no clipping
        try:
            norms.append(float(optimizer.clip_grad_norm(max_norm)))
            optimizer.step()
        except OverflowError as error:
            norms.append(str(error))
    return norms


def largest_difference(actual: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> float:
    """Return the largest absolute difference of two lists of tensors of the same shapes."""
    differences = []
    for one, other in zip(actual, expected, strict=True):
        differences.append((one.double() - other.double()).abs().max().item())
    return max(differences)


def float32_weights(optimizer, params: list[nn.Parameter]) -> list[torch.Tensor]:
    """Return the float32 weights that an optimiser for half precision keeps, in the shapes of `params`."""
    if isinstance(optimizer, HalfPrecisionOptimizer):  # the plug-in's
        return optimizer.float32_weights()
    if not optimizer.has_flat_params:  # fairseq's
        return optimizer.fp32_params

    (flat,) = optimizer.fp32_params.values()  # one vector with all of them
    pieces = flat.data.split([param.numel() for param in params])
    return [piece.view(param.shape) for piece, param in zip(pieces, params, strict=True)]
