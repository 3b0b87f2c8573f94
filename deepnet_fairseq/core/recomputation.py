"""Activation checkpointing (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost") of groups of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .pass_state import State, copied


def group_size(cfg: Any) -> int:
    """Return how many layers are to be recomputed together, from a model's config; 0 keeps all activations.

    checkpoint_every is None where only --checkpoint-activations was given.
    """
    if not cfg.checkpoint_activations:
        return 0
    return cfg.checkpoint_every or 1


def recomputed(
    group: Callable[[Tensor, State], Tensor], x: Tensor, state: State, same_random_numbers: bool = True
) -> Tensor:
    """Return group(x, state) without keeping its activations: the backward pass computes them again from x.

    group: function that runs some layers on x (B, T, W) and returns their output. It may change `state`, what layers
    share in one forward pass (pass_state.py), in place; afterwards `state` is what the first run has made of it. The
    second time it begins with the same state as the first time, and draws the same random numbers. same_random_numbers:
    False for a group that draws none, so that the random generators need not be put back for the second time.
    """

    def run_on_copy(x: Tensor, state_before: State) -> tuple[Tensor, State]:
        """Return output and new state of the group; checkpoint() calls this twice with the same `state_before`."""
        state_after = copied(state_before)
        return group(x, state_after), state_after

    # a copy, because the backward pass needs the state as it is now, and `state` goes on changing
    y, state_after = checkpoint(
        run_on_copy, x, copied(state), use_reentrant=False, preserve_rng_state=same_random_numbers
    )
    state.clear()
    state.update(state_after)
    return y
