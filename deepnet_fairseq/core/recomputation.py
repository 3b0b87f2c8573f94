"""Activation checkpointing (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost") of groups of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .pass_state import State, copied


def group_size(cfg: Any) -> int:
    """Return how many layers a filled config recomputes together, 0 to keep all activations."""
    if not cfg.checkpoint_activations:
        return 0
    return cfg.checkpoint_every or 1


def recomputed(group: Callable[[Tensor, State], Tensor], x: Tensor, state: State) -> Tensor:
    """Return group(x, state), keeping nothing but x: the backward pass computes it again.

    The group may change `state`; the second time it begins with the same state and the same random numbers.
    """

    def from_start(x: Tensor, before: State) -> tuple[Tensor, State]:
        after = copied(before)
        return group(x, after), after

    y, after = checkpoint(from_start, x, copied(state), use_reentrant=False)
    state.clear()
    state.update(after)
    return y
