"""A function of fairseq's with something of ours around it, put there once by each room that has something to add."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def wrap(owner, name: str, around: Callable[..., object]) -> None:
    """owner.name(...) becomes around(original, ...); owner: a module or a class; for a method `self` comes second.

    Idempotent, also for a package that is imported under two names; several rooms may wrap one function, the last
    outermost. A static method stays one, and a class method becomes one, of `owner`.
    """
    static = isinstance(getattr(owner, "__dict__", {}).get(name), (staticmethod, classmethod))
    original = getattr(owner, name)
    mark = f"{around.__module__.partition('.')[2]}.{around.__qualname__}"
    rooms = getattr(original, "rooms", frozenset())
    if mark in rooms:
        return

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    vars(wrapped)["rooms"] = rooms | {mark}
    setattr(owner, name, staticmethod(wrapped) if static else wrapped)
