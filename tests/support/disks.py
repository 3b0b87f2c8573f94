"""Disks that are full, or seem to be."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Let this process write at most `size` bytes to any file in the block: more raises an OSError, as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def set_free_space(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """Let shutil.disk_usage, which the package asks, report `free` bytes free on every disk."""
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
