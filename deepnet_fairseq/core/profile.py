"""Measure Admin's profile: the omegas of one forward pass, by hooks on every residual merge.

methods/admin.py has the equation and its source. Hooks are attached from outside and removed at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .slots import LearnedShortcut, Residual, Site

AFTER_ANY_WARM_UP = 10**9  # updates, behind any warm-up


def residuals(model: nn.Module) -> Iterator[tuple[Site, Residual]]:
    """Yield every branch with the module that merges it into the residual stream, in forward order of each stack."""
    for stack in model.stacks().values():
        for layer in stack.layers:
            for sublayer, site in layer.sites.items():
                yield site, layer.residual[sublayer]


@contextmanager
def watching(model: nn.Module, visit: Callable[[Site, Any, Tensor, Tensor], None]) -> Iterator[None]:
    """Call visit(site, residual, x, f) before each merge of shortcut x and branch f while the context lasts."""

    with ExitStack() as hooks:
        for site, residual in residuals(model):
            hook = residual.register_forward_pre_hook(lambda module, inputs, site=site: visit(site, module, *inputs))
            hooks.enter_context(hook)
        yield


def variance(tensor: Tensor) -> float:
    """Compute the population variance over all elements, padding included, in float32."""
    return tensor.detach().float().var(unbiased=False).item()


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Put the model into training or evaluation mode inside the context; restore each module's mode afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@torch.no_grad()
def profile_omegas(model: nn.Module, net_input: dict, seed: int) -> dict[Site, float]:
    """Measure one omega a branch of an Admin model on one batch (`net_input` of a fairseq sample), dropout from `seed`.

    They are in forward order, the encoder's first. Each is set in the model as the pass in training mode reaches it,
    from the outputs of the branches before it; branches that rise with the updates count fully. All else is left as it
    was, the state of torch's generators too.
    """
    omegas: dict[Site, float] = {}
    following = dict.fromkeys(model.stacks(), 1.0)

    def visit(site: Site, residual: LearnedShortcut, x: Tensor, f: Tensor) -> None:
        omegas[site] = following[site.stack]
        residual.omega.fill_(omegas[site])
        following[site.stack] = math.sqrt(variance(residual.omega * x) + variance(f))

    device = next(model.parameters()).device
    rising = [module for module in model.modules() if hasattr(type(module), "set_num_updates")]
    before = []
    for module in rising:
        before.append((module, {name: buffer.clone() for name, buffer in module.named_buffers(recurse=False)}))

    model.set_num_updates(AFTER_ANY_WARM_UP)
    random_numbers = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with random_numbers, in_mode(model, training=True), watching(model, visit):
        torch.manual_seed(seed)
        model(**net_input)

    for module, buffers in before:
        for name, value in buffers.items():
            module.get_buffer(name).copy_(value)
    return omegas


@torch.no_grad()
def apply_omegas(model: nn.Module, omegas: list[float]) -> None:
    """Fill the omegas (C,) of all branches, given in forward order, encoder first; ValueError for another number."""
    for (_, residual), omega in zip(residuals(model), omegas, strict=True):
        residual.omega.fill_(omega)


def depths_and_widths(model: nn.Module) -> dict[str, Any]:
    """Return depth and widths of the model's stacks, by the field names of admin_profile.Profile, depths first."""
    depths, widths, ffn_widths = {}, {}, {}
    for name, stack in model.stacks().items():
        fc1 = stack.layers[0].fc1
        depths[f"{name}_layers"] = len(stack.layers)
        widths[f"{name}_width"] = fc1.in_features
        ffn_widths[f"{name}_ffn_width"] = fc1.out_features
    return depths | widths | ffn_widths


def dropouts(model: nn.Module) -> dict[str, float]:
    """Return the three probabilities of dropout by config field: dropout, attention_dropout, activation_dropout."""
    layer = next(iter(model.stacks().values())).layers[0]
    return {
        "dropout": layer.dropout.p,
        "attention_dropout": layer.self_attn.dropout.p,
        "activation_dropout": layer.activation_dropout.p,
    }
