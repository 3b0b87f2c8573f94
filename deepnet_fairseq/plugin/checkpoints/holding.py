"""A training holds its --save-dir: a second one there would replace and remove what the first saves.

The lock is filelock's, on a file in the folder; it ends with the process however that ends.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ...errors import UserError
from ..distributed import agreement

LOCK = ".lock"
GRACE = 5.0  # seconds in which a process that was killed may still be on its way out
_lock: FileLock | None = None  # of this process


def take(folder: Path) -> None:
    """Hold `folder`, which is made, on rank 0 until `release`; raise a UserError on all ranks if another training does.

    A second call for the same folder changes nothing, one for another lets go of the first.
    """
    agreement.from_first(lambda: _take(folder.absolute()))


def release() -> None:
    """Let go of the folder; the next training may begin there."""
    global _lock
    if _lock is not None:
        _lock.release()
        _lock = None


def _take(folder: Path) -> None:
    global _lock
    file = folder / LOCK
    if _lock is not None and Path(_lock.lock_file) == file:
        return
    release()
    lock = FileLock(file)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=GRACE)
    except Timeout:
        holder = ""
        with suppress(OSError):
            holder = f" ({file.read_text().strip()[:100]})"
        said = f"{folder}: another training holds it{holder}; wait for its end, or give another --save-dir"
        raise UserError(said) from None
    except (OSError, NotImplementedError):  # read-only, or a disk without locks; fairseq says why it cannot be written
        return
    _lock = lock
    with suppress(OSError):
        file.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
