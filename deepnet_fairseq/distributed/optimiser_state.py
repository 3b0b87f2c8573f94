"""An optimiser's state of fairseq's checkpoints, of whole parameters or of the parts that a rank has.

An entry a parameter, or one flat entry for all, as fairseq's optimisers for half precision write it. The optimiser
treats each number by itself: tensors of an entry have their parameter's shape. In half precision the float32 weights
are beside the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..checkpoints.exact_resume import WEIGHTS
from . import rows

Entry = dict[str, Any]


def is_flat(state: dict, shapes: Sequence[torch.Size]) -> bool:
    """Is one entry there for all parameters?"""
    return sum(len(group["params"]) for group in state["param_groups"]) == 1 and len(shapes) > 1


def entries(state: dict, shapes: Sequence[torch.Size]) -> list[Entry]:
    """An entry for each parameter, in their order; empty before the first update. Shapes: of the tensors in `state`."""
    places = [place for group in state["param_groups"] for place in group["params"]]
    if not is_flat(state, shapes):
        return [state["state"].get(place, {}) for place in places]
    entry, sizes = state["state"].get(places[0], {}), [shape.numel() for shape in shapes]
    pieces = {key: value.split(sizes) for key, value in entry.items() if _is_part(key, value)}
    return [
        entry | {key: part[number].view(shape) for key, part in pieces.items()} for number, shape in enumerate(shapes)
    ]


def with_entries(state: dict, found: list[Entry], flat: bool) -> dict:
    """`state` with other entries; flat: as one for all."""
    places = [place for group in state["param_groups"] for place in group["params"]]
    if not flat:
        return state | {"state": {place: entry for place, entry in zip(places, found, strict=True) if entry}}
    merged = {
        key: torch.cat([entry[key].reshape(-1) for entry in found]) if _is_part(key, value) else value
        for key, value in found[0].items()
    }
    return state | {"state": {places[0]: merged} if merged else {}}


def each(found: list[Entry], change: Callable[[int, Tensor], Tensor]) -> list[Entry]:
    """The entries with change(number of the parameter, tensor) in place of each tensor that has its shape."""
    return [
        {key: change(number, value) if _is_part(key, value) else value for key, value in entry.items()}
        for number, entry in enumerate(found)
    ]


def join(states: list[dict], shapes: list[torch.Size]) -> dict:
    """The whole state from those of all ranks; shapes: of the whole parameters."""
    world = len(states)
    local = [[rows.local_shape(shape, rank, world) for shape in shapes] for rank in range(world)]
    found = [entries(state, of_rank) for state, of_rank in zip(states, local, strict=True)]
    whole = [
        {
            key: rows.join([of_rank[number][key] for of_rank in found], shape) if _is_part(key, value) else value
            for key, value in found[0][number].items()
        }
        for number, shape in enumerate(shapes)
    ]
    state = with_entries(states[0], whole, is_flat(states[0], shapes))
    if WEIGHTS in state:
        parts = zip(*(state[WEIGHTS] for state in states), strict=True)
        state[WEIGHTS] = [rows.join(of_ranks, shape) for of_ranks, shape in zip(parts, shapes, strict=True)]
    return state


def cut(state: dict, shapes: list[torch.Size], rank: int, world: int) -> dict:
    """A rank's part of a whole state."""
    found = each(entries(state, shapes), lambda _, value: rows.cut(value, rank, world))
    state = with_entries(state, found, is_flat(state, shapes))
    if WEIGHTS in state:
        state[WEIGHTS] = [rows.cut(value, rank, world) for value in state[WEIGHTS]]
    return state


def _is_part(key: str, value) -> bool:
    """Has `value` a number for each of the parameter's? torch's optimisers keep their count of updates as a tensor."""
    return isinstance(value, Tensor) and key != "step"
