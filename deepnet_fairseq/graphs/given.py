"""What a captured graph takes as given: it replays kernels on fixed addresses, and no Python."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Given:
    """Everything that `modules` compute with beside their inputs, read anew by each call of `now`.

    Plain numbers that a module holds (modes and dropout rates among them) are baked into a graph; tensors are read
    where they lay when it was captured. So a slot whose factor changes with the updates works in a graph if the factor
    is a buffer filled in place, and is found here if it is a number.
    """

    def __init__(self, modules: list[nn.Module]):
        self.numbers = [
            (vars(m), name) for m in modules for name, value in vars(m).items() if type(value) in (bool, int, float)
        ]
        held = [group for m in modules for group in (m._parameters, m._buffers)]
        self.tensors = [(group, name) for group in held for name, value in group.items() if value is not None]
        self.hooks = [getattr(m, name) for m in modules for name in HOOKS]

    def now(self) -> tuple:
        """Equal to what it was before: a graph captured then is still right."""
        numbers = tuple([group.get(name) for group, name in self.numbers])
        tensors = [group.get(name) for group, name in self.tensors]
        places = tuple([None if t is None else (t.data_ptr(), t.requires_grad) for t in tensors])
        return numbers, places

    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters, each once."""
        found = [group[name] for group, name in self.tensors]
        return list({id(tensor): tensor for tensor in found if tensor.requires_grad}.values())

    def watched(self) -> bool:
        """Does a hook want to be called inside?"""
        return any(self.hooks) or torch.nn.modules.module._has_any_global_hook()


def inner_modules(stack: nn.Module) -> Iterator[nn.Module]:
    """The modules that a stack's `transform` runs through."""
    for child in (stack.layers, stack.mixer):
        if child is not None:
            yield from child.modules()
