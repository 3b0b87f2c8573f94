"""The folder that a recipe fills: whose it is, and what of it counts."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ...errors import UserError
from ..remote.progress import say


@contextmanager
def claimed(dest: Path, what: str) -> Iterator[None]:
    """DEST is ours while this runs, once no other process works in it; UserError if it holds something else."""
    mark = dest / "steps" / "recipe"
    if not mark.exists():
        if dest.exists() and not dest.is_dir():
            raise UserError(f"{dest}: is there and no folder; name another")
        others = {path.name for path in dest.iterdir()} - {"downloads", "steps"} if dest.is_dir() else set()
        if others:
            raise UserError(f"{dest}: is there and holds other things ({sorted(others)[0]}); name a new folder")
        mark.parent.mkdir(parents=True, exist_ok=True)
    with locked(mark) as file:
        file.seek(0)
        held = file.read().strip()
        if held and held != what:
            raise UserError(f"{dest}: holds {held}, not {what}; name another folder")
        if not held:
            file.write(f"{what}\n")
            file.flush()
        try:
            yield
        except BaseException:
            if [path for path in dest.rglob("*") if path.is_file()] == [mark]:  # nothing came of it: nobody's
                mark.unlink()
            raise


@contextmanager
def locked(mark: Path) -> Iterator[IO[str]]:
    """The file, open and locked: one process at a time, the others wait.

    The lock goes with its process, and with it alone: children that outlive it hold no lockf.
    """
    while True:
        with open(mark, "a+", encoding="utf-8") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say(f"{mark.parent.parent}: another deepnet prepare works in it; waiting for its end")
                fcntl.lockf(file, fcntl.LOCK_EX)
            if mark.exists() and os.path.samestat(mark.stat(), os.fstat(file.fileno())):  # not if the other removed it
                yield file
                return


def outputs(dest: Path) -> dict[str, int]:
    """Path -> bytes of all that makes up a prepared corpus: copying it, or removing what led to it, changes nothing."""
    files = [file for name in ("bin", "reference") for file in sorted((dest / name).rglob("*")) if file.is_file()]
    return {os.fspath(file.relative_to(dest)): file.stat().st_size for file in files}
