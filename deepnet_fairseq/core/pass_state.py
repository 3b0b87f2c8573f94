"""State that lives for one forward pass of a stack, for slots of several layers that share something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

State = dict[str, Any]
_RUNNING: ContextVar[State] = ContextVar("state of the running pass")


def pass_state() -> State:
    """Return the dictionary of a stack's running forward pass; each pass, and each decoding step, has its own.

    A slot stores data for later layers under a key of its own: a tensor, or a list or dictionary of tensors.
    When layers are recomputed, the dictionary is restored to its state before the first of them. Raises a RuntimeError
    outside a pass.
    """
    try:
        return _RUNNING.get()
    except LookupError:
        raise RuntimeError("pass_state(): no stack is running; a layer that needs it cannot be called alone") from None


@contextmanager
def running(state: State) -> Iterator[None]:
    """Make `state` the dictionary of the running pass in this thread."""
    token = _RUNNING.set(state)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def copied(state: State) -> State:
    """Copy a state and the lists and dictionaries in it, but no tensor."""
    copy: State = {}
    for key, value in state.items():
        if isinstance(value, list | dict):
            copy[key] = type(value)(value)
        else:
            copy[key] = value
    return copy
