"""Disks that are full, or will be."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Let the block write at most `size` bytes to a file: more fails as on a full disk, with an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def set_free_space(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """Let every disk seem to have `free` bytes free."""
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
