"""From a model's config to what stands in for its stacks' `transform`; the stacks know nothing of it."""

from __future__ import annotations

import functools

from torch import nn

from ..errors import UserError
from .compiled import Compiled
from .graphed import Graphed


def attach(model: nn.Module, task, cfg) -> None:
    """The training of `model` by `task` has compiled layers or CUDA graphs, as a filled model config asks.

    From its first epoch's begin, when the model is cast and lies where it stays; a model that only translates is left
    alone. UserError then if the training is on the CPU: there are no graphs, and compiled layers are slower.
    """
    if not (cfg.cuda_graphs or cfg.compile_layers) or not hasattr(task, "begin_epoch"):
        return
    begin_epoch = task.begin_epoch

    @functools.wraps(begin_epoch)
    def begin_first_epoch(*args, **kwargs):
        task.begin_epoch = begin_epoch
        if next(model.parameters()).device.type != "cuda":
            flag = "--cuda-graphs" if cfg.cuda_graphs else "--compile-layers"
            raise UserError(f"{flag}: for a GPU, and this training runs on the CPU; drop the flag, or --cpu")
        if cfg.compile_layers:
            compile_layers(model)
        if cfg.cuda_graphs:
            use_graphs(model, cfg.cuda_graphs_limit)
        return begin_epoch(*args, **kwargs)

    task.begin_epoch = begin_first_epoch


def use_graphs(model: nn.Module, limit: int, **options) -> None:
    """The stacks of a DeepModel train by up to `limit` CUDA graphs each from now on; options: of Graphed."""
    for stack in model.stacks().values():
        stack.transform = Graphed(stack, limit, **options)


def compile_layers(model: nn.Module, **options) -> None:
    """The stacks of a DeepModel train by compiled layers from now on; options: of torch.compile."""
    for stack in model.stacks().values():
        stack.transform = Compiled(stack, **options)
