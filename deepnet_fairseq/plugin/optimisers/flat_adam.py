"""The torch optimiser behind deepnet_adam: Adam with decoupled weight decay on flat parameters.

A handful of kernels, however many tensors a model has. Kingma and Ba 2015, algorithm 1 in the order of section 2's end,
and Loshchilov and Hutter 2019, algorithm 2. These are the numbers of fairseq's adam,
p -= lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps), which takes some ten kernels a tensor. torch's fused kernel
divides by sqrt(v / (1 - b2^t)) + eps, which is the same with eps / sqrt(1 - b2^t) in the place of eps.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from torch import Tensor, nn

from ...errors import UserError
from .flat import Flat, Shard

Entry = dict[str, Any]
MOMENTS = ("exp_avg", "exp_avg_sq")
WEIGHTS = "weights"
ROW = 512  # elements: squares are added up row by row; float32 sums of 4e7 of them in a row are off by 3e-3


class FlatAdam(torch.optim.Optimizer):
    """Adam over one group of parameters, which become views of one buffer for each dtype and device.

    A factor that multiplies all gradients is kept as a number until the step; the gradients in the parameters stay as
    backward made them. state_dict is that of fairseq's adam.
    absent_is_zero: does a parameter without gradient count as one with gradient 0? merge: is the state one flat entry
    for all parameters? Both as fairseq's optimiser for half precision has it.
    """

    absent_is_zero = False
    merge = False

    def __init__(self, params, lr: float, betas: tuple[float, float], eps: float, weight_decay: float):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": False})
        (group,) = self.param_groups
        kinds: dict[tuple, list[int]] = defaultdict(list)
        for index, parameter in enumerate(group["params"]):
            kinds[parameter.dtype, parameter.device].append(index)
        self.parts = [Part(indices, group["params"]) for indices in kinds.values()]
        self.factor: float | Tensor = 1.0  # what the gradients are still to be multiplied by
        self._norm: Tensor | None = None  # of the gradients noted last
        self._shard: Shard | None = None
        self._whole: list[dict] | None = None  # of each part what its shares make up, for a checkpoint

    def shard(self, group) -> None:
        """Before the first update: each process of `group` keeps the state of its share of the weights (ZeRO)."""
        self._shard = Shard(group)
        for part in self.parts:
            part.flat.shard(self._shard)

    @property
    def is_shared(self) -> bool:
        """Do other processes keep a part of the state?"""
        return self._shard is not None

    def norm(self) -> Tensor:
        """L2 norm of all gradients times `factor`, a number in float32 on the first parameter's device."""
        if self._norm is None:
            norms = [part.norm() for part in self.parts]
            self._norm = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
        return self._norm * self.factor

    @torch.no_grad()
    def step(self, closure=None):
        """One update with the gradients that the norm was asked for last, if it was, or with those at hand."""
        loss = closure() if closure is not None else None
        if self._norm is None:
            for part in self.parts:
                part.flat.collect()
        for part in self.parts:
            part.update(self.param_groups[0], self.factor, self.absent_is_zero)
        self._forget()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients and their factor, and what was put together for a checkpoint."""
        self._whole = None
        self._forget()
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    def _forget(self) -> None:
        self.factor, self._norm = 1.0, None
        for part in self.parts:
            part.flat.drop()

    def consolidate_state_dict(self) -> None:
        """By fairscale's name for it, which fairseq's trainer calls: state_dict comes next, on the first process."""
        if self._shard is not None:
            kept = [part.moments | {WEIGHTS: part.flat.weights} for part in self.parts]
            self._whole = [{key: self._shard.collected(mine) for key, mine in one.items()} for one in kept]

    def broadcast_global_state_dict(self, state_dict: dict) -> dict:
        """By fairscale's name too: what the first process has read, on all."""
        if self._shard is None:
            return state_dict
        return distributed_utils.broadcast_object(state_dict, src_rank=0, group=self._shard.group)

    def weights(self) -> list[Tensor]:
        """Float32 weights of the parameters, in their order and shapes, views.

        [] where others have shares of them, but when a checkpoint is made on the first process.
        """
        if self._shard is not None and not self._whole:
            return []
        flats = [part.flat.weights for part in self.parts] if self._shard is None else [w[WEIGHTS] for w in self._whole]
        views = {}
        for part, flat in zip(self.parts, flats, strict=True):
            views.update(zip(part.indices, part.flat.views(flat), strict=True))
        return [views[index] for index in sorted(views)]

    @torch.no_grad()
    def load_weights(self, weights: list[Tensor]) -> None:
        """Takes over what weights() gave, of all parameters."""
        for part in self.parts:
            part.flat.fill(part.flat.weights, dict(enumerate(weights[index] for index in part.indices)))

    def state_dict(self) -> dict:
        """{"state": {index: {"step", "exp_avg", "exp_avg_sq"}}, "param_groups"}, the moments views of a few tensors."""
        (group,) = self.param_groups
        found: list[Entry] = [{} for _ in group["params"]]
        for part, kept in zip(self.parts, self._whole or [part.moments for part in self.parts], strict=True):
            views = {
                name: part.flat.views(kept[name].cpu() if self.merge else kept[name])
                for name in MOMENTS
                if name in kept
            }
            for number, (index, step) in enumerate(zip(part.indices, part.steps, strict=True)):
                if step:
                    found[index] = {"step": step} | {name: views[name][number] for name in MOMENTS}
        state = {"param_groups": [group | {"params": list(range(1 if self.merge else len(found)))}]}
        return with_entries({"state": {}} | state, found, self.merge)

    def load_state_dict(self, state_dict: dict) -> None:
        """Takes over the state of this class or of fairseq's adam; UserError if it is another model's."""
        (group,) = self.param_groups
        found = _fitting(state_dict, [parameter.shape for parameter in group["params"]])
        saved = state_dict["param_groups"][0]
        group.update({key: saved[key] for key in self.defaults.keys() & saved.keys()})
        for part in self.parts:
            of_part = {number: found[index] for number, index in enumerate(part.indices) if found[index]}
            part.steps, part.moments = [int(found[index].get("step", 0)) for index in part.indices], {}
            for name, mine in part.filled_moments().items() if of_part else ():
                part.flat.fill(mine, {number: entry[name] for number, entry in of_part.items()})


class Part:
    """Flat parameters, their indices in the optimiser's list, and their state of Adam.

    parameters: of that list; indices: of those of one dtype and device.
    steps: updates each parameter has had; one without gradient is left out of an update, as fairseq's adam does.
    moments: empty until they are needed; of the shard, if there is one.
    """

    def __init__(self, indices: list[int], parameters: list[nn.Parameter]):
        self.indices = indices
        self.flat = Flat([parameters[index] for index in self.indices])
        self.steps = [0] * len(indices)
        self.moments: dict[str, Tensor] = {}

    def norm(self) -> Tensor:
        """L2 norm of the gradients, a number in float32."""
        self.flat.collect()
        return torch.linalg.vector_norm(torch.stack([_norm(gradient) for *_, gradient in self.flat.gradients()]))

    def filled_moments(self) -> dict[str, Tensor]:
        """The moments, 0 at their first use."""
        if not self.moments:
            self.moments = {name: torch.zeros_like(self.flat.weights) for name in MOMENTS}
        return self.moments

    def update(self, group: dict, factor: float | Tensor, absent_is_zero: bool) -> None:
        """One update, with gradient times factor, of the parameters that have a gradient.

        group: of a torch optimiser, lr, betas, eps and weight_decay; absent_is_zero: of all parameters, without
        gradient as if it were 0.
        """
        present = [True] * len(self.steps) if absent_is_zero else self.flat.present
        self.steps = [step + there for step, there in zip(self.steps, present, strict=True)]
        runs = list(self._runs(present))
        device, scale = self.flat.weights.device, None
        if not isinstance(factor, float) or factor != 1.0:
            if not torch.is_tensor(factor) or factor.is_cpu:  # a copy from there would wait
                factor = torch.full((), float(factor), device=device)
            scale = factor.to(device, torch.float32).reciprocal()
        counts = {step: torch.full((), float(step), device=device) for step, *_ in runs}
        tensors = (self.flat.weights, *self.filled_moments().values())
        own = self.flat.start
        for start, stop, gradient in self.flat.gradients(own=True):
            for step, first, last in runs:
                begin, end = max(start, first, own), min(stop, last, own + len(self.flat.weights))
                if begin < end:
                    weights, *moments = (tensor[begin - own : end - own] for tensor in tensors)
                    _adam(step, weights, gradient[begin - start : end - start], moments, counts[step], group, scale)
        self.flat.publish()

    def _runs(self, present: list[bool]):
        """Number of the update, begin and end of each stretch of neighbours for which it is the same."""
        first = 0
        for (step, there), run in groupby(zip(self.steps, present, strict=True)):
            last = first + sum(1 for _ in run) - 1
            if there:
                yield step, *self.flat.stretch(first, last)
            first = last + 1


def _adam(step: int, weights, gradient, moments, count: Tensor, group: dict, grad_scale: Tensor | None) -> None:
    beta1, beta2 = group["betas"]
    torch._fused_adamw_(
        [weights], [gradient], *([moment] for moment in moments), [], [count],
        lr=group["lr"], beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"],
        eps=group["eps"] / math.sqrt(1 - beta2**step), amsgrad=False, maximize=False, grad_scale=grad_scale,
    )  # fmt: skip


def _norm(gradient: Tensor) -> Tensor:
    whole = len(gradient) // ROW * ROW
    rows = torch.linalg.vector_norm(gradient[:whole].view(-1 if whole else 0, ROW), dim=1)
    return torch.linalg.vector_norm(torch.cat([rows, gradient[whole:]])).float()


def is_flat(state: dict, shapes: Sequence[torch.Size]) -> bool:
    """Has a state of fairseq's checkpoints one entry for all parameters, as `--fp16` writes it?"""
    return sum(len(group["params"]) for group in state["param_groups"]) == 1 and len(shapes) > 1


def entries(state: dict, shapes: Sequence[torch.Size]) -> list[Entry]:
    """An entry for each parameter, in their order; empty before the first update. Shapes: of the tensors in `state`."""
    indices = [index for group in state["param_groups"] for index in group["params"]]
    if not is_flat(state, shapes):
        return [state["state"].get(index, {}) for index in indices]
    entry, sizes = state["state"].get(indices[0], {}), [shape.numel() for shape in shapes]
    split = {key: value.split(sizes) for key, value in entry.items() if is_part(key, value)}
    return [entry | {key: part[n].view(shape) for key, part in split.items()} for n, shape in enumerate(shapes)]


def with_entries(state: dict, found: list[Entry], flat: bool) -> dict:
    """`state` with other entries, empty ones left out; flat: as one for all."""
    indices = [index for group in state["param_groups"] for index in group["params"]]
    if not flat:
        return state | {"state": {index: entry for index, entry in zip(indices, found, strict=True) if entry}}
    merged = {
        key: torch.cat([entry[key].reshape(-1) for entry in found]) if is_part(key, value) else value
        for key, value in found[0].items()
    }
    return state | {"state": {indices[0]: merged} if merged else {}}


def is_part(key: str, value) -> bool:
    """Has `value` a number for each of the parameter's? torch's optimisers keep their count of updates as a tensor."""
    return isinstance(value, Tensor) and key != "step"


def _fitting(state: dict, shapes: list[torch.Size]) -> list[Entry]:
    """The entries of an Adam's state; UserError if they are not those of parameters of these shapes."""
    try:
        found = entries(state, shapes)
        fits = len(found) == len(shapes) and all(
            entry[name].shape == shape for entry, shape in zip(found, shapes) if entry for name in MOMENTS
        )
    except (KeyError, RuntimeError):  # another optimiser's, or of other sizes in all
        fits = False
    if not fits:
        raise UserError("the checkpoint's optimiser state is of other parameters; add --reset-optimizer")
    of_all = state["param_groups"][0].get("step", 0)  # apex counts for all parameters together
    return [{"step": of_all} | entry if entry else {} for entry in found]
