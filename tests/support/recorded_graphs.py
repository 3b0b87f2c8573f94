"""Stands for CUDA graphs on the CPU, with what makes them treacherous."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx


class Recorded:
    """A graphs.replay.Capture that replays recorded ATen operations on recorded addresses, and no Python.

    As in a pool of memory that graphs share, a forward pass overwrites what the one before left for its backward pass,
    and the static output; gradients of parameters lie in the shared buffers.
    """

    device = "cpu"
    new_pool = dict
    replays = 0

    def __init__(self, function, inputs, gradients, pool):
        self.inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
        self.gradients, self.pool = gradients, pool
        with torch.random.fork_rng(devices=[]):
            self.function = make_fx(function, pre_dispatch=True)(*self.inputs)
        self.addresses = {id(p): p.detach().requires_grad_() for p in gradients.parameters}
        held = self.function._parameters
        held.update({name: self.addresses.get(id(p), p.detach()) for name, p in held.items()})
        self.used = [True] * len(gradients.parameters)

    def forward(self, inputs):
        with torch.enable_grad():
            for static, given in zip(self.inputs, inputs, strict=True):
                static.data.copy_(given)
            self.pool["output"] = self.function(*self.inputs)
        Recorded.replays += 1
        return self.pool["output"].detach().clone()

    def backward(self, gradient):
        wanted = [t for t in self.inputs if t.requires_grad]
        with torch.enable_grad():
            found = torch.autograd.grad(self.pool.pop("output"), [*wanted, *self.addresses.values()], gradient)
        torch._foreach_copy_(self.gradients.buffers, list(found[len(wanted) :]))
        own = iter(found)
        return [next(own) if t.requires_grad else None for t in self.inputs]
