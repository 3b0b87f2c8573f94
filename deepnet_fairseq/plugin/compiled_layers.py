"""--compile-layers: the repeated layer, compiled once for all layers of a stack, which knows nothing of it.

Numbers are in docs/speed.md.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

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
    torch._dynamo.config.optimize_ddp = False  # for models compiled as a whole: it cuts a layer where a bucket ends
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
        self.stack, self.plain = stack, stack.transform
        self.hooks = [getattr(module, name) for module in stack.layers.modules() for name in HOOKS]
        kinds = {type(layer) for layer in stack.layers}
        compiled = {kind: torch.compile(kind.forward, dynamic=True, **options) for kind in kinds}
        self.layers = [functools.partial(compiled[type(layer)], layer) for layer in stack.layers]

    def __call__(self, x: Tensor, *inputs: Tensor | None) -> Tensor:
        """x (B, T, C) and what each layer is given besides -> (B, T, C), as Stack.transform."""
        watched = any(self.hooks) or torch.nn.modules.module._has_any_global_hook()
        trains = self.stack.training and torch.is_grad_enabled()
        return self.plain(x, *inputs, layers=self.layers if trains and not watched else None)

    def __deepcopy__(self, memo) -> Callable:
        """A copied stack runs its layers as they are."""
        return copy.deepcopy(self.plain, memo)
