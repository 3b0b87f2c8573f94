"""The wrapper around a model of several processes whose batches are computed by graphs.

torch's DistributedDataParallel averages gradients within the backward pass, which a graph replays without Python, and
so without its collectives. Here they are averaged after the last batch of an update.
"""

from __future__ import annotations

from typing import Any

from fairseq.distributed import ModuleProxyWrapper
from torch import distributed, nn

from .step import GraphedStep

BUCKET = 2**28  # bytes that torch joins and sends at a time


class GraphedDataParallel(nn.Module):
    """Stands where DDP stands, for a model of which `graphs` computes most batches, and fairseq the others.

    In the beginning all processes get the model's weights and buffers of the first one, as with DDP. Every pass adds to
    the parameters' `grad`; fairseq calls all_reduce_grads, if a wrapper has it, before it clips the gradients.
    """

    def __init__(self, module: nn.Module, graphs: GraphedStep, group: Any):
        """Wrap a model, and send its weights and buffers.

        module: the model, on the training's device; group: torch's, of the processes that train together.
        """
        super().__init__()
        self.module = module
        self.graphs = graphs
        tensors = [parameter.data for parameter in module.parameters()] + list(module.buffers())
        distributed._broadcast_coalesced(group, tensors, BUCKET, 0)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model; the arguments are its own."""
        return self.module(*args, **kwargs)

    def all_reduce_grads(self) -> None:
        """Average the gradients of model and loss over the processes."""
        self.graphs.average_gradients()


def wrap(model: nn.Module, graphs: GraphedStep, group: Any) -> ModuleProxyWrapper:
    """Wrap a model of several processes, torch's group `group`; the result has its attributes and its state_dict."""
    return ModuleProxyWrapper(GraphedDataParallel(model, graphs, group))
