"""Methods that a test makes and registers for a while, as the files of a --user-dir register theirs for good."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from torch import Tensor, nn

from deepnet_fairseq.core.methods import METHODS, Method, register
from deepnet_fairseq.core.methods.base import REGISTRATION_LISTENERS
from deepnet_fairseq.core.modifiers import MODIFIERS, Modifier, register_modifier
from deepnet_fairseq.core.slots import Residual

_numbers = count()  # in the names of registered methods


class ScaledBranch(Residual):
    """Residual merge x + c f; c is a plain number, neither a parameter nor a buffer."""

    def __init__(self, c: float = 0.5):
        super().__init__()
        self.c = c

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        return x + self.c * f


def method_with(module: type[nn.Module] = ScaledBranch, /, *values, **members) -> type[Method]:
    """Return a new class of methods, not yet registered, that merges every branch by module(*values).

    members: further attributes and slots of the class, by name; they replace those below
    """

    def residual(self, site) -> nn.Module:
        return module(*values)

    own = {"equation": "y", "paper": "a test", "residual": residual}
    return type("OwnMethod", (Method,), own | members)


@contextmanager
def registered(method: type[Method]) -> Iterator[str]:
    """Register a method for the block under a new name, and yield the name."""
    name = f"example{next(_numbers)}"
    register(name)(method)
    try:
        yield name
    finally:
        del METHODS[name]
        _tell_listeners()


@contextmanager
def registered_modifier(modifier: type[Modifier], name: str) -> Iterator[None]:
    """Register a modifier under `name` for the block."""
    register_modifier(name)(modifier)
    try:
        yield
    finally:
        del MODIFIERS[name]
        _tell_listeners()


def _tell_listeners() -> None:
    """Have the config classes made again, now without what has been taken out of the registries.

    `register` and `register_modifier` do so themselves.
    """
    for listener in REGISTRATION_LISTENERS:
        listener()
