"""--compile-layers: the repeated layer, compiled once for all layers of a stack, which knows nothing of it.

Numbers are in docs/kernels.md.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from types import MethodType

import torch
from torch import Tensor, nn

from ..errors import UserError

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def attach(model: nn.Module, task, cfg) -> None:
    """The training of `model` by `task` has compiled layers, if a filled model config asks for them.

    From its first epoch's begin, when the model is cast and lies where it stays; a model that only translates is left
    alone. UserError then if the training is on the CPU, where compiled layers are slower.
    """
    if not cfg.compile_layers or not hasattr(task, "begin_epoch"):
        return
    begin_epoch = task.begin_epoch

    @functools.wraps(begin_epoch)
    def begin_first_epoch(*args, **kwargs):
        task.begin_epoch = begin_epoch
        if next(model.parameters()).device.type != "cuda":
            raise UserError("--compile-layers: for a GPU, and this training runs on the CPU; drop the flag, or --cpu")
        compile_layers(model)
        return begin_epoch(*args, **kwargs)

    task.begin_epoch = begin_first_epoch


def compile_layers(model: nn.Module, **options) -> None:
    """The stacks of a DeepModel train by compiled layers from now on; options: of torch.compile."""
    for stack in model.stacks().values():
        stack.transform = Compiled(stack, **options)


class Compiled:
    """Called as transform(x, *inputs): training runs the layers compiled, everything else as they are.

    Layers of one class share one compilation, for their parameters are inputs of the compiled code. It serves batches
    of all shapes; there is another for each of: a mask given or none, layers that compute differently. It would not
    call hooks that came after it, so a pass that hooks watch is not compiled. Its dropout draws other numbers than the
    plain layers do. options: of torch.compile.
    """

    def __init__(self, stack: nn.Module, **options):
        self.stack, self.eager = stack, stack.transform
        modules = [m for child in (stack.layers, stack.mixer) if child is not None for m in child.modules()]
        self.hooks = [getattr(module, name) for module in modules for name in HOOKS]
        self.on = False  # until the next forward pass, so that layers are recomputed as they were computed
        stack.states = _Plain(self, stack.states)  # type: ignore[assignment]  # a method
        kinds = {type(layer) for layer in stack.layers}
        compiled = {kind: torch.compile(kind.forward, dynamic=True, **options) for kind in kinds}
        for layer in stack.layers:
            layer.forward = _Forward(self, layer, compiled[type(layer)])

    def __call__(self, x: Tensor, *inputs: Tensor | None) -> Tensor:
        """x (B, T, C) and what each layer is given besides -> (B, T, C), as Stack.transform."""
        watched = any(self.hooks) or torch.nn.modules.module._has_any_global_hook()
        self.on = self.stack.training and torch.is_grad_enabled() and not watched
        return self.eager(x, *inputs)

    def __deepcopy__(self, memo) -> Callable:
        """A copied stack runs its layers as they are."""
        return copy.deepcopy(self.eager, memo)


class _Plain:
    """`stack.states`, of layers as they are: who asks for hidden states is looking."""

    def __init__(self, switch: Compiled, states: Callable):
        self.switch, self.states = switch, states

    def __call__(self, *args, **kwargs):
        self.switch.on = False
        return self.states(*args, **kwargs)

    def __deepcopy__(self, memo) -> Callable:
        return copy.deepcopy(self.states, memo)


class _Forward:
    """A layer's `forward`, compiled or not."""

    def __init__(self, switch: Compiled, layer: nn.Module, compiled: Callable):
        self.switch, self.layer, self.compiled = switch, layer, compiled

    def __call__(self, *inputs, **kwargs):
        run = self.compiled if self.switch.on else type(self.layer).forward
        return run(self.layer, *inputs, **kwargs)

    def __deepcopy__(self, memo) -> Callable:
        return MethodType(type(self.layer).forward, copy.deepcopy(self.layer, memo))
