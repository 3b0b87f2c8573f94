"""State that lives for one forward pass of a stack (encoder or decoder), for modules of several layers to share.

The modules are those that a method puts into the slots of layers (methods/base.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

State = dict[str, Any]  # a key that the method chooses -> a tensor, or a list or dictionary of tensors
_RUNNING: ContextVar[State] = ContextVar("state of the running pass")  # not set while no pass is running


def pass_state() -> State:
    """Return the state of the forward pass that a stack is running; each pass, and each decoding step, has its own.

    A module in a slot of a layer calls this in its `forward` and stores what later layers need under a key of its own:
    a tensor, or a list or dictionary of tensors. When some layers are recomputed in the backward pass
    (--checkpoint-activations), they find the state as it was before the first of them ran. Raises a RuntimeError
    outside a pass.
    """
    try:
        return _RUNNING.get()
    except LookupError:
        raise RuntimeError("pass_state(): no stack is running; a layer that needs it cannot be called alone") from None


@contextmanager
def running(state: State) -> Iterator[None]:
    """Make `state` what pass_state() returns in this thread, inside the context."""
    token = _RUNNING.set(state)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def copied(state: State) -> State:
    """Copy a state and the lists and dictionaries in it; the tensors are shared."""
    copy: State = {}
    for key, value in state.items():
        if isinstance(value, list | dict):
            copy[key] = type(value)(value)
        else:
            copy[key] = value
    return copy
