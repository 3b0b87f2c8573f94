"""FSDP2 (torch's fully_shard) under fairseq's trainer.

A layer's weights are gathered when it runs and dropped after it; gradients are reduced to the rank that keeps their
rows. fairseq's optimisers see each rank's rows as plain parameters: what they do is done number by number.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from . import shards

HALF = (torch.float16, torch.bfloat16)


class FullySharded(nn.Module):
    """`model` with its parameters in shards over `group`; attributes it lacks are the model's.

    A group of parameters for each member of a list of modules (the layers), one for the rest. keep_gathered: weights
    stay whole from the forward to the backward pass (--no-reshard-after-forward). In half precision gradients are added
    up in float32. shapes: of the whole tensors that are sharded, by all their names.
    """

    def __init__(self, model: nn.Module, group, device: torch.device, keep_gathered: bool = False):
        super().__init__()
        self.module = model
        self.rank, self.world = group.rank(), group.size()
        # fully_shard moves a group at a time: the whole may not fit there
        half = any(parameter.dtype in HALF for parameter in model.parameters())
        self.scalars = Scalars([p for p in model.parameters() if not p.dim()], group, device)
        settings = {
            "mesh": DeviceMesh.from_group(group, device.type),
            "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32 if half else None, cast_forward_inputs=False),
            "ignored_params": set(self.scalars.parameters),
        }
        for layer in _layers(model):
            fully_shard(layer, reshard_after_forward=not keep_gathered, **settings)
        fully_shard(model, reshard_after_forward=False, **settings)
        self._sharded = [p for p in model.parameters() if isinstance(p, DTensor)]
        self._shards = {p: nn.Parameter(_part(p), requires_grad=p.requires_grad) for p in self._sharded}
        self._shards |= dict(zip(self.scalars.parameters, self.scalars.shards, strict=True))
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self.shapes = {name: value.shape for name, value in model.state_dict().items() if isinstance(value, DTensor)}

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def forward(self, *args, **kwargs):
        """As the model's; weights are gathered layer by layer, a call of all ranks."""
        self.scalars.update()
        return self.module(*args, **kwargs)

    def named_parameters(self, *args, **kwargs):
        """Name -> this rank's rows, what an optimiser updates."""
        return iter((name, self._shards[parameter]) for parameter, name in self._names.items())

    def trained_shapes(self) -> list[torch.Size]:
        """Shapes of the whole parameters that an optimiser has, in its order."""
        return [parameter.shape for parameter in self._names if parameter.requires_grad]

    def all_reduce_grads(self) -> None:
        """fairseq's word that the backward passes of an update are over: the gradients become the shards'."""
        for parameter in self._sharded:
            grad, parameter.grad = parameter.grad, None
            self._shards[parameter].grad = None if grad is None else _part(grad)
        self.scalars.reduce()

    def state_dict(self) -> dict[str, Tensor]:
        """The whole model on the CPU of the first rank, nothing on the others; a call of all ranks."""
        return self._state(lambda value: value.full_tensor())

    def local_state_dict(self) -> dict[str, Tensor]:
        """This rank's rows, on the CPU; scalars and buffers are the first rank's."""
        return self._state(_part, everywhere=True)

    def load_state_dict(self, state_dict: dict[str, Tensor], strict: bool = True, model_cfg=None):
        """Takes each rank's rows from the whole state, which all ranks have."""
        whole = {name: value for name, value in state_dict.items() if value.shape == self.shapes.get(name)}
        state_dict = OrderedDict(state_dict) | {name: self._as_sharded(value) for name, value in whole.items()}
        self.module.reshard()
        return self.module.load_state_dict(state_dict, strict, model_cfg)

    def gather(self, part: Tensor, shape: torch.Size) -> Tensor:
        """The whole tensor of that shape, of which each rank gives its part, on the CPU of the first; a call of all."""
        if not len(shape):
            return part.cpu()
        whole = self._from_part(part, shape).full_tensor()
        return whole.cpu() if self.rank == 0 else whole.new_empty(0)

    def _as_sharded(self, value: Tensor) -> DTensor:
        return self._from_part(shards.cut_rows(value, self.rank, self.world).to(self._sharded[0].device), value.shape)

    def _from_part(self, part: Tensor, shape: torch.Size) -> DTensor:
        stride = torch.empty(shape, device="meta").stride()
        mesh = self._sharded[0].device_mesh
        return DTensor.from_local(part, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)

    def _state(self, read, everywhere: bool = False) -> dict[str, Tensor]:
        self.scalars.update()
        self.module.reshard()
        state, read_once = {}, {}
        for name, value in self.module.state_dict(keep_vars=True).items():
            if isinstance(value, DTensor):
                if (found := read_once.get(value)) is None:  # tied parameters have several names and one memory
                    whole = read(value).detach()
                    found = read_once[value] = whole.cpu() if self.rank == 0 or everywhere else whole.new_empty(0)
                state[name] = found
            elif self.rank == 0:
                state[name] = value.detach()
        return state if self.rank == 0 or everywhere else {}


class Scalars:
    """Parameters of one number, which no rank can have rows of: every rank has them, the first one updates them.

    Rezero has one for each layer, R-Fixup seven; FSDP2 refuses them. `parameters` (), whose memory becomes one vector
    on `device`, over `group`.

    shards: what this rank's optimiser updates: views of the parameters on the first rank, empty on the others.
    """

    def __init__(self, parameters: list[nn.Parameter], group, device: torch.device):
        self.parameters, self.group = parameters, group
        self._stale = False  # has the first rank updated them since they were sent?
        first = group.rank() == 0
        if parameters:
            self._values = torch.stack([parameter.data for parameter in parameters]).to(device)
            for parameter, value in zip(parameters, self._values, strict=True):
                parameter.data = value
        mine = (parameter.data if first else parameter.data.new_empty(0) for parameter in parameters)
        self.shards = [nn.Parameter(one, requires_grad=p.requires_grad) for one, p in zip(mine, parameters)]

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


def _part(value: DTensor) -> Tensor:
    """A rank's rows, which share the sharded tensor's memory."""
    return value.detach().to_local()  # type: ignore[attr-defined]  # a DTensor's detach() gives one


def _layers(model: nn.Module) -> list[nn.Module]:
    """What lists of modules hold, but for lists within."""
    found = []
    for child in model.children():
        found += list(child) if isinstance(child, nn.ModuleList) else _layers(child)
    return found
