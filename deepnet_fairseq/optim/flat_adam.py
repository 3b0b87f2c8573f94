"""The torch optimiser behind deepnet_adam."""

from __future__ import annotations

from collections import defaultdict

import torch
from fairseq.distributed import utils as distributed_utils
from torch import Tensor

from .adam_part import Part
from .adam_state import MOMENTS, merged, split
from .share import Share

WEIGHTS = "weights"


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
        for place, parameter in enumerate(group["params"]):
            kinds[parameter.dtype, parameter.device].append(place)
        self.parts = [Part(places, [group["params"][place] for place in places]) for places in kinds.values()]
        self.factor: float | Tensor = 1.0  # what the gradients are still to be multiplied by
        self._norm: Tensor | None = None  # of the gradients noted last
        self._share: Share | None = None
        self._whole: list[dict] | None = None  # of each part what its shares make up, for a checkpoint

    def share(self, group) -> None:
        """Before the first update: each process of `group` keeps the state of its share of the weights (ZeRO)."""
        self._share = Share(group)
        for part in self.parts:
            part.flat.share(self._share)

    @property
    def is_shared(self) -> bool:
        """Do other processes keep a part of the state?"""
        return self._share is not None

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
        if self._share is not None:
            self._whole = [
                {
                    name: self._share.collected(mine)
                    for name, mine in (part.moments | {WEIGHTS: part.flat.weights}).items()
                }
                for part in self.parts
            ]

    def broadcast_global_state_dict(self, state_dict: dict) -> dict:
        """By fairscale's name too: what the first process has read, on all."""
        if self._share is None:
            return state_dict
        return distributed_utils.broadcast_object(state_dict, src_rank=0, group=self._share.group)

    def weights(self) -> list[Tensor]:
        """Float32 weights of the parameters, in their order and shapes, views.

        [] where others have shares of them, but when a checkpoint is made on the first process.
        """
        if self._share is not None and not self._whole:
            return []
        flats = [part.flat.weights for part in self.parts] if self._share is None else [w[WEIGHTS] for w in self._whole]
        views = {}
        for part, flat in zip(self.parts, flats, strict=True):
            views.update(zip(part.places, part.flat.views(flat), strict=True))
        return [views[place] for place in sorted(views)]

    @torch.no_grad()
    def load_weights(self, given: list[Tensor]) -> None:
        """Takes over what weights() gave, of all parameters."""
        for part in self.parts:
            mine, chosen = part.flat.weights, [given[place] for place in part.places]
            flat = mine if self._share is None else torch.zeros(part.flat.length, dtype=mine.dtype)
            torch._foreach_copy_(part.flat.views(flat), [value.to(flat.device) for value in chosen])
            if flat is not mine:
                mine.copy_(flat[part.flat.start :][: len(mine)])

    def state_dict(self) -> dict:
        """{"state": {place: {"step", "exp_avg", "exp_avg_sq"}}, "param_groups"}, the moments views of a few tensors."""
        entries, whole = {}, self._whole or [part.moments for part in self.parts]
        for part, moments in zip(self.parts, whole, strict=True):
            moments = {name: flat.cpu() if self.merge else flat for name, flat in moments.items() if name != WEIGHTS}
            views = {name: part.flat.views(flat) for name, flat in moments.items()}
            for number, (place, step) in enumerate(zip(part.places, part.steps, strict=True)):
                if step:
                    entries[place] = {"step": step} | {name: views[name][number] for name in MOMENTS}
        entries = dict(sorted(entries.items()))
        count = len(self.param_groups[0]["params"])
        if self.merge:
            entries, count = merged(entries), 1
        group = {key: value for key, value in self.param_groups[0].items() if key != "params"}
        return {"state": entries, "param_groups": [group | {"params": list(range(count))}]}

    def load_state_dict(self, state_dict: dict) -> None:
        """Takes over the state of this class or of fairseq's adam; UserError if it is another model's."""
        (group,) = self.param_groups
        entries = split(state_dict, [parameter.shape for parameter in group["params"]])
        saved = state_dict["param_groups"][0]
        group.update({key: saved[key] for key in self.defaults.keys() & saved.keys()})
        for part in self.parts:
            part.steps, part.moments = [0] * len(part.places), {}
            known = [number for number, place in enumerate(part.places) if place in entries]
            for number in known:
                part.steps[number] = int(entries[part.places[number]]["step"])
            for name, mine in part.filled_moments().items() if known else ():
                flat = mine if self._share is None else torch.zeros(part.flat.length, dtype=mine.dtype)
                views = part.flat.views(flat)
                given = [entries[part.places[number]][name] for number in known]
                torch._foreach_copy_([views[number] for number in known], given)
                if flat is not mine:
                    mine.copy_(flat[part.flat.start :][: len(mine)])
