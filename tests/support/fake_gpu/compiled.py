"""What --compile-layers asks of the device: the kernels that inductor's scheduler makes of a layer, none of them built.

Layers are traced on fake tensors of the device, so by its branches. Its dimensions are fixed here.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from unittest import mock

import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch._inductor import compile_fx, config, scheduler
from torch._subclasses.fake_tensor import FakeTensorMode

from deepnet_fairseq.plugin.building import build
from deepnet_fairseq.plugin.compiled_layers import compile_layers
from deepnet_fairseq.plugin.optimisers.flat_adam import FlatAdam

from .device import GPU, KERNELS
from .step import DEVICE, Shape, begin


@dataclass
class Graphs:
    """kernels: of each compiled graph, forward or backward, operator -> launches; breaks: dynamo's, with reasons."""

    kernels: list[Counter] = field(default_factory=list)
    breaks: dict = field(default_factory=dict)


class _Scheduled(Exception):
    """Instead of writing the kernels."""


def compiled(shape: Shape, **fields) -> Graphs:
    """The layers of a 2L-2L model in fp16, as deepnet_adam lays its weights, compiled for a forward and backward pass.

    fields: of the model's config.
    """
    begin()
    attend = DEVICE.attend
    F.scaled_dot_product_attention = torch._dynamo.allow_in_graph(lambda *args, **kwargs: attend(*args, **kwargs))
    torch._dynamo.reset()
    counters.clear()
    graphs, fake = Graphs(), FakeTensorMode(allow_non_fake_inputs=True)
    with fake, DEVICE:
        model = (
            build(vocab=1000, encoder_layers=2, decoder_layers=2, **{"dropout": 0.1} | fields).half().to(GPU).train()
        )
        FlatAdam(list(model.parameters()), 1e-3, (0.9, 0.98), 1e-8, 0.0)
        given = _inputs(model, shape)
    compile_layers(model, backend=partial(compile_fx.compile_fx, inner_compile=partial(_scheduled, graphs, fake)))
    with config.patch(force_disable_caches=True, joint_graph_constant_folding=False):
        for name, stack in model.stacks().items():
            stack.transform(*given[name]).backward(given[name][0].detach())
    graphs.breaks = dict(counters["graph_break"])
    return graphs


def _inputs(model, shape: Shape) -> dict[str, list]:
    """What each stack's layers are given, by its name, as leaves that ask for gradients."""
    given, tokens = {}, [torch.full((shape.rows, length), 5, device=GPU) for length in (shape.source, shape.target)]
    tokens[0][-1, 0] = 1

    def noting(name, transform, x, *inputs):
        leaves = (one.detach() if torch.is_tensor(one) else one for one in (x, *inputs))
        given[name] = [one.requires_grad_() if torch.is_tensor(one) and one.dim() == 3 else one for one in leaves]
        return transform(x, *inputs)

    for name, stack in model.stacks().items():
        stack.transform = partial(noting, name, stack.transform)
    model(tokens[0], None, tokens[1])
    for stack in model.stacks().values():
        del stack.transform
    return given


def _scheduled(graphs: Graphs, fake: FakeTensorMode, graph, inputs, **kwargs):
    """In place of inductor's last stage: notes a graph's kernels, and runs it as it is."""

    def note(nodes: scheduler.Scheduler):
        graphs.kernels.append(_kernels(nodes.nodes))
        raise _Scheduled

    plain, there = copy.deepcopy(graph), mock.patch("torch._inductor.scheduler.has_triton", lambda *_: True)
    with there, mock.patch.object(scheduler.Scheduler, "codegen", note):
        try:
            compile_fx.compile_fx_inner(graph, inputs, **kwargs)
        except Exception as error:
            if _Scheduled.__name__ not in repr(error):
                raise

    def run(values: list):
        with fake:
            return plain(*values)

    run._boxed_call = True
    return run


def _kernels(nodes: list[scheduler.BaseSchedulerNode]) -> Counter:
    """Launches of a schedule: one a group of fused operators, an extern operator's own."""
    found: Counter = Counter()
    for node in nodes:
        if isinstance(node, scheduler.ExternKernelSchedulerNode):
            operator = getattr(node.node, "python_kernel_name", None)  # none: a part of another's result
            name = operator.removeprefix("torch.ops.").split(".")[1] if operator else ""
            found[name] += KERNELS.get(name, 1) if name else 0
        elif not isinstance(node, scheduler.NopKernelSchedulerNode):
            found["reduction" if node.is_reduction() else "pointwise"] += 1
    return +found
