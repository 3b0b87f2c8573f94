"""A one-stack model trained in process under TrainingProbes, with what its parameters were before each update."""

from __future__ import annotations

import torch
from torch import nn

from deepnet_fairseq.probes import get_probes
from deepnet_fairseq.probes.attach import TrainingProbes

from .single_stacks import batch, loss_of, small

SCALE = 64.0  # of the loss, as in half precision


class Adam:
    """What the probes see of fairseq's optimisers."""

    _multiply_factor = 1 / SCALE

    def __init__(self, model: nn.Module):
        self.adam = torch.optim.Adam(model.parameters(), lr=0.02)

    def clip_grad_norm(self, _max_norm):
        return 1.0

    def step(self):
        self.clip_grad_norm(0.0)
        self.adam.step()
        self.adam.zero_grad()


def train(folder, kind: str, probes: str, updates: int, layers: int = 2, **fields):
    """Leaves probes.jsonl in folder; gives for each update the parameters before it and the mean loss's gradients."""
    model = small(kind, layers, **fields).train()
    optimizer, seen = Adam(model), []
    watch = TrainingProbes(model, get_probes(probes), 1, folder, {"method": fields["method"]})
    for update in range(updates):
        watch.before_step(optimizer, update)
        (loss_of(model, batch(seed=update)) * SCALE).backward()
        seen.append({
            name: (p.detach().clone(), p.grad / SCALE) for name, p in model.named_parameters() if p.grad is not None
        })  # fmt: skip
        optimizer.step()
    return seen
