"""fairseq's optimisers over made-up parameters and gradients."""

from __future__ import annotations

import torch
from fairseq import optim
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf
from torch import nn

SHAPES = [(7, 5), (3,), (), (64, 64), (130,), (40, 16)]


def settings(name: str, lr: float = 1e-2, common: dict | None = None, **adam):
    """fairseq's whole config, with optimiser `name`."""
    cfg = OmegaConf.structured(FairseqConfig)
    OmegaConf.set_struct(cfg, False)
    cfg.optimization.lr, cfg.optimization.update_freq = [lr], [1]
    given = {"adam_betas": "(0.9, 0.98)", "adam_eps": 1e-8, "weight_decay": 0.1} | adam
    cfg.optimizer = {"_name": name} | given
    for key, value in (common or {}).items():
        cfg.common[key] = value
    return cfg


def parameters(dtype=torch.float32, shapes=SHAPES, seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def optimiser(name: str, params, **given):
    return optim.build_optimizer(settings(name, **given).optimizer, params)


def set_gradients(params, update: int, scale: float = 1.0, absent=()) -> None:
    """Gradients of very different size from update to update."""
    generator = torch.Generator().manual_seed(update)
    for number, parameter in enumerate(params):
        gradient = torch.randn(parameter.shape, generator=generator) * (1.0 if update % 3 else 1e-3) * scale
        parameter.grad = None if number in absent else gradient.to(parameter.dtype)


def train(built, params, updates, max_norm: float = 0.7, absent=lambda update: ()) -> list[float]:
    """Updates through fairseq's calls in its trainer's order, with a warm-up, clipping every other; the norms."""
    norms = []
    for update in updates:
        built.set_lr(1e-2 * min(1.0, (update + 1) / 10))
        built.zero_grad()
        set_gradients(params, update, absent=absent(update))
        built.multiply_grads(0.25)
        norms.append(float(built.clip_grad_norm(max_norm if update % 2 else 0.0)))
        built.step()
    return norms


def difference(ours, theirs) -> float:
    """Largest difference of two lists of tensors."""
    return max((a.double() - b.double()).abs().max().item() for a, b in zip(ours, theirs, strict=True))
