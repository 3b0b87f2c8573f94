"""What torchscale imports and does not use here, where it cannot be imported.

torchscale takes one function of timm, for stochastic depth, which is off; timm needs torchvision, whose wheel does not
load beside a CPU build of torch. Of fairscale it takes the wrapper that recomputes a layer; fairseq has a copy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from fairseq.modules.checkpoint_activations import checkpoint_wrapper


@contextmanager
def stand_ins() -> Iterator[None]:
    """In this block `timm.models.layers` and, if it is missing, `fairscale.nn` are these; nothing of it stays."""
    modules = _package("timm.models.layers", drop_path=_drop_path)
    try:
        import fairscale.nn  # noqa: F401
    except ImportError:
        modules |= _package("fairscale.nn", checkpoint_wrapper=checkpoint_wrapper, wrap=_wrap)
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _package(name: str, **content) -> dict[str, ModuleType]:
    """A module by its full name, and those above it."""
    parts = name.split(".")
    found = {full: ModuleType(full) for full in (".".join(parts[: i + 1]) for i in range(len(parts)))}
    vars(found[name]).update(content)
    return found


def _drop_path(*_):
    raise AssertionError("stochastic depth is off")


def _wrap(*_):
    raise AssertionError("sharding is off")
