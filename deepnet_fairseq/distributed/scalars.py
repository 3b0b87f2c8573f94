"""Parameters of one number, which no rank can have rows of: every rank has them, the first one updates them.

Rezero has one for each layer, R-Fixup seven. FSDP2 refuses them.
"""

from __future__ import annotations

import torch
from torch import distributed, nn


class Scalars:
    """`parameters` (), whose memory becomes one vector on `device`, over `group`.

    shards: what this rank's optimiser updates: views of the parameters on the first rank, empty on the others.
    """

    def __init__(self, parameters: list[nn.Parameter], group, device: torch.device):
        self.parameters, self.group = parameters, group
        self._stale = False  # has the first rank updated them since they were sent?
        first = group.rank() == 0
        self.shards: list[nn.Parameter] = []
        if parameters:
            self._values = torch.stack([parameter.data for parameter in parameters]).to(device)
            for parameter, value in zip(parameters, self._values, strict=True):
                parameter.data = value
        for parameter in parameters:
            shard = parameter.data if first else parameter.data.new_empty(0)
            self.shards.append(nn.Parameter(shard, requires_grad=parameter.requires_grad))

    def reduce(self) -> None:
        """The mean of the ranks' gradients becomes the shards'."""
        trained = [p for p in self.parameters if p.requires_grad]
        if not trained:
            return
        zero = trained[0].new_zeros(())
        mean = torch.stack([zero if p.grad is None else p.grad for p in trained]).float()
        distributed.all_reduce(mean, group=self.group)
        mean = (mean / self.group.size()).to(zero.dtype)
        shards = [shard for shard in self.shards if shard.requires_grad]
        for parameter, shard, value in zip(trained, shards, mean, strict=True):
            parameter.grad, shard.grad = None, value if shard.numel() else torch.zeros_like(shard)
        self._stale = True

    def update(self) -> None:
        """All ranks have what the first one made of them; a call of all ranks."""
        if self._stale:
            distributed.broadcast(self._values, distributed.get_global_rank(self.group, 0), group=self.group)
            self._stale = False
