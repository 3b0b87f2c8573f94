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
        outside: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter in model.parameters():
            if not parameter.dim() or (half and parameter.dtype not in HALF):
                outside.setdefault(parameter.dtype, []).append(parameter)
        self.gathered = [Gathered(parameters, group, device) for parameters in outside.values()]
        settings = {
            "mesh": DeviceMesh.from_group(group, device.type),
            "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32 if half else None, cast_forward_inputs=False),
            "ignored_params": {parameter for one in self.gathered for parameter in one.parameters},
        }
        for layer in _layers(model):
            fully_shard(layer, reshard_after_forward=not keep_gathered, **settings)
        fully_shard(model, reshard_after_forward=False, **settings)
        self._sharded = [p for p in model.parameters() if isinstance(p, DTensor)]
        self._shards = {p: nn.Parameter(_part(p), requires_grad=p.requires_grad) for p in self._sharded}
        for one in self.gathered:
            self._shards |= zip(one.parameters, one.shards, strict=True)
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self.shapes = {name: value.shape for name, value in model.state_dict().items() if isinstance(value, DTensor)}

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def forward(self, *args, **kwargs):
        """As the model's; weights are gathered layer by layer, a call of all ranks."""
        self._complete()
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
        for one in self.gathered:
            one.reduce()

    def state_dict(self) -> dict[str, Tensor]:
        """The whole model on the CPU of the first rank, nothing on the others; a call of all ranks."""
        return self._state(lambda value: value.full_tensor())

    def local_state_dict(self) -> dict[str, Tensor]:
        """This rank's rows, on the CPU, and what every rank has whole."""
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

    def _complete(self) -> None:
        for one in self.gathered:
            one.update()

    def _state(self, read, everywhere: bool = False) -> dict[str, Tensor]:
        self._complete()
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


class Gathered:
    """Parameters that every rank has whole, and of which each updates its rows: what FSDP2 takes into no group.

    Scalars (rezero has one for each layer, R-Fixup seven), and the float32 vectors of a model in half precision (admin,
    dlcl), whose groups are of one type. `parameters` of one type become one vector on `device`, over `group`.

    shards: what this rank's optimiser updates: views of its rows, of scalars the first rank's.
    """

    def __init__(self, parameters: list[nn.Parameter], group, device: torch.device):
        self.parameters, self.group = parameters, group
        self._stale = False  # have the ranks updated their rows since all had them?
        self._values = torch.cat([parameter.data.reshape(-1) for parameter in parameters]).to(device)
        self._mine = torch.zeros_like(self._values, dtype=torch.bool)
        for parameter, value, mine in zip(parameters, self._views(self._values), self._views(self._mine), strict=True):
            parameter.data = value
            self._rows(mine).fill_(True)
        self.shards = [nn.Parameter(self._rows(p.data), requires_grad=p.requires_grad) for p in parameters]

    def reduce(self) -> None:
        """The mean of the ranks' gradients becomes the shards'."""
        mean = torch.zeros_like(self._values, dtype=torch.float32)
        for parameter, view in zip(self.parameters, self._views(mean), strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
        distributed.all_reduce(mean, group=self.group)
        mean = (mean / self.group.size()).to(self._values.dtype)
        for parameter, shard, view in zip(self.parameters, self.shards, self._views(mean), strict=True):
            parameter.grad, shard.grad = None, self._rows(view) if shard.requires_grad else None
        self._stale = True

    def update(self) -> None:
        """All ranks have what each made of its rows; a call of all ranks."""
        if self._stale:
            self._values.masked_fill_(~self._mine, 0)
            distributed.all_reduce(self._values, group=self.group)
            self._stale = False

    def _views(self, flat: Tensor) -> list[Tensor]:
        """Each parameter's part of a vector, in its shape."""
        parts = flat.split([parameter.numel() for parameter in self.parameters])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self.parameters, strict=True)]

    def _rows(self, whole: Tensor) -> Tensor:
        return shards.cut_rows(whole, self.group.rank(), self.group.size())


def _part(value: DTensor) -> Tensor:
    """A rank's rows, which share the sharded tensor's memory."""
    return value.detach().to_local()  # type: ignore[attr-defined]  # a DTensor's detach() gives one


def _layers(model: nn.Module) -> list[nn.Module]:
    """What lists of modules hold, but for lists within."""
    found = []
    for child in model.children():
        found += list(child) if isinstance(child, nn.ModuleList) else _layers(child)
    return found
