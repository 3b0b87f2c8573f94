"""The torch optimiser behind deepnet_adam."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from .adam_part import Part
from .adam_state import MOMENTS, merged, split


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
        """Drops the gradients and their factor."""
        self._forget()
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    def _forget(self) -> None:
        self.factor, self._norm = 1.0, None
        for part in self.parts:
            part.flat.drop()

    def state_dict(self) -> dict:
        """{"state": {place: {"step", "exp_avg", "exp_avg_sq"}}, "param_groups"}, the moments views of a few tensors."""
        entries = {}
        for part in self.parts:
            moments = {name: flat.cpu() if self.merge else flat for name, flat in part.moments.items()}
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
            for name, flat in part.filled_moments().items() if known else ():
                views = part.flat.views(flat)
                given = [entries[part.places[number]][name] for number in known]
                torch._foreach_copy_([views[number] for number in known], given)
