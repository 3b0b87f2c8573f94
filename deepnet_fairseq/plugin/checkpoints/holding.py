"""Lock a training's --save-dir, for a second training there would replace and remove the first one's checkpoints.

The lock is filelock's, on a file in the folder; the system frees it when the process ends in any way.
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
    """Lock `folder` on rank 0 until `release`; raise a UserError on all ranks if another training holds it.

    The folder is made. A second call for the same folder changes nothing, one for another folder frees the first.
    """
    agreement.from_first(lambda: _take(folder.absolute()))


def release() -> None:
    """Free the folder for the next training."""
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
