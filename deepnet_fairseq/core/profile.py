"""Measure the profile of an Admin model: the omegas, factors on the shortcuts, that one forward pass gives.

They are measured by hooks on the residual merges, the modules that add a branch (self-attention, cross-attention or
feed-forward of a layer) to its shortcut. methods/admin.py has the equation and its source. A stack is the encoder or
the decoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .slots import LearnedShortcut, Residual, Site

AFTER_ANY_WARM_UP = 10**9  # a number of updates done, larger than any warm-up of branches takes


def residuals(model: nn.Module) -> Iterator[tuple[Site, Residual]]:
    """Yield every branch of a DeepModel with its residual merge, in forward order, the encoder's first."""
    for stack in model.stacks().values():
        for layer in stack.layers:
            for sublayer, site in layer.sites.items():
                yield site, layer.residual[sublayer]


@contextmanager
def watching(model: nn.Module, visit: Callable[[Site, Any, Tensor, Tensor], None]) -> Iterator[None]:
    """Call visit(site, residual, x, f) before each merge of shortcut x and branch f while the context lasts.

    site: the branch's slots.Site; residual: the module that merges; x, f: its inputs, (B, T, C) each for most methods.
    """

    def make_hook(site: Site) -> Callable[[Any, tuple], None]:
        return lambda residual, inputs: visit(site, residual, *inputs)

    with ExitStack() as handles:  # its end removes the hooks
        for site, residual in residuals(model):
            handle = residual.register_forward_pre_hook(make_hook(site))
            handles.enter_context(handle)
        yield


def variance(tensor: Tensor) -> float:
    """Compute the variance over all n elements of a tensor of any shape, in float32; squares are divided by n."""
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
    """Measure the omega of each branch of an Admin model in one forward pass in training mode, and set it in the model.

    net_input: the entry of that name in a fairseq sample, keyword arguments of the model's forward; seed: of the
    dropout. Returns branch -> omega in forward order, the encoder's first. Each omega is set when the pass reaches its
    branch, and follows from what the branch before it gave (methods/admin.py); padding counts as tokens do. Branches
    that a modifier warms up (--pro-res) count fully. Apart from the omegas the model is left as it was, and so is the
    state of torch's random generators.
    """
    omegas: dict[Site, float] = {}
    next_omega = dict.fromkeys(model.stacks(), 1.0)  # stack -> omega of the branch that the pass reaches next

    def visit(site: Site, residual: LearnedShortcut, x: Tensor, f: Tensor) -> None:
        """Set omega of a merge that the pass has reached, and compute that of the stack's next merge."""
        omegas[site] = next_omega[site.stack]
        residual.omega.fill_(omegas[site])
        next_omega[site.stack] = math.sqrt(variance(residual.omega * x) + variance(f))

    # (module, name -> buffer) of the modules that change with the updates, to restore them at the end
    buffers_before = []
    for module in model.modules():
        if hasattr(type(module), "set_num_updates"):
            copies = {name: buffer.clone() for name, buffer in module.named_buffers(recurse=False)}
            buffers_before.append((module, copies))

    device = next(model.parameters()).device
    cuda_devices = [device] if device.type == "cuda" else []
    model.set_num_updates(AFTER_ANY_WARM_UP)
    with torch.random.fork_rng(cuda_devices), in_mode(model, training=True), watching(model, visit):
        torch.manual_seed(seed)
        model(**net_input)

    for module, buffers in buffers_before:
        for name, value in buffers.items():
            module.get_buffer(name).copy_(value)
    return omegas


@torch.no_grad()
def apply_omegas(model: nn.Module, omegas: list[float]) -> None:
    """Set all elements of each branch's vector omega (C,) to one number.

    omegas: one for each branch in forward order, the encoder's first; ValueError if there are more or fewer.
    """
    for (_site, residual), omega in zip(residuals(model), omegas, strict=True):
        residual.omega.fill_(omega)


def depths_and_widths(model: nn.Module) -> dict[str, Any]:
    """Return depth, width and feed-forward width of the stacks, by the names of fields of plugin.admin_profile.Profile.

    These are encoder_layers, encoder_width, encoder_ffn_width and the same of the decoder, for stacks that the model
    has. Depths come first, because the first field that differs is named to the user.
    """
    depths = {}
    widths = {}
    ffn_widths = {}
    for name, stack in model.stacks().items():
        fc1 = stack.layers[0].fc1
        depths[f"{name}_layers"] = len(stack.layers)
        widths[f"{name}_width"] = fc1.in_features
        ffn_widths[f"{name}_ffn_width"] = fc1.out_features
    return depths | widths | ffn_widths


def dropouts(model: nn.Module) -> dict[str, float]:
    """Return the model's probabilities of dropout by config field: dropout, attention_dropout, activation_dropout."""
    layer = next(iter(model.stacks().values())).layers[0]
    return {
        "dropout": layer.dropout.p,
        "attention_dropout": layer.self_attn.dropout.p,
        "activation_dropout": layer.activation_dropout.p,
    }
