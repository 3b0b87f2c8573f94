"""The state of Adam in a checkpoint of fairseq: an entry for each parameter, or one flat entry for all of them."""

from __future__ import annotations

import torch

from ..errors import UserError

Entries = dict[int, dict]
MOMENTS = ("exp_avg", "exp_avg_sq")


def merged(entries: Entries) -> Entries:
    """The entries of all parameters as the one that `--fp16` writes."""
    if not entries:
        return {}
    flat = {name: torch.cat([entry[name].flatten() for entry in entries.values()]) for name in MOMENTS}
    return {0: {"step": entries[0]["step"]} | flat}


def split(state_dict: dict, shapes: list[torch.Size]) -> Entries:
    """Place -> {"step", "exp_avg", "exp_avg_sq"}, of either kind of state.

    UserError if it does not fit parameters of these shapes.
    """
    saved, entries = state_dict["param_groups"], state_dict["state"]
    places = [place for group in saved for place in group["params"]]
    if len(places) == 1 and len(shapes) > 1:
        entries, places = _unmerged(entries, shapes), list(range(len(shapes)))
    numbers = {place: number for number, place in enumerate(places)}
    found = {numbers[place]: entry for place, entry in entries.items() if place in numbers and entry}
    fits = len(places) == len(shapes) and all(
        MOMENTS[0] in entry and all(entry[name].shape == shapes[number] for name in MOMENTS)
        for number, entry in found.items()
    )
    if not fits:
        raise UserError("the checkpoint's optimiser state is of other parameters; add --reset-optimizer")
    of_all = saved[0].get("step", 0)  # apex counts for all parameters together
    return {number: {"step": of_all} | entry for number, entry in found.items()}


def _unmerged(entries: Entries, shapes: list[torch.Size]) -> Entries:
    sizes = [shape.numel() for shape in shapes]
    (entry,) = entries.values() or ({},)
    if not entry or entry[MOMENTS[0]].numel() != sum(sizes):
        return entries
    views = {name: entry[name].split(sizes) for name in MOMENTS}
    return {
        number: {"step": entry["step"]} | {name: views[name][number].view(shape) for name in MOMENTS}
        for number, shape in enumerate(shapes)
    }
