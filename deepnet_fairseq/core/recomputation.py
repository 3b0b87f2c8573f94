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
    """Return group(x, state) without keeping its activations: the backward pass computes them again from x.

    group: runs a group of layers; it may change `state` (pass_state.py) in place. The second time it begins with the
    same state and the same random numbers as the first time.
    """

    # works on a copy, because checkpoint() calls this twice with the same arguments
    def run_on_copy(x: Tensor, state_before: State) -> tuple[Tensor, State]:
        state_after = copied(state_before)
        return group(x, state_after), state_after

    y, state_after = checkpoint(run_on_copy, x, copied(state), use_reentrant=False)
    state.clear()
    state.update(state_after)
    return y
