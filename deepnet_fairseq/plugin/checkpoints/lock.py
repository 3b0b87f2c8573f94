"""Lock a training's --save-dir, because a second training there would replace and remove the first one's checkpoints.

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

NAME = ".lock"
GRACE = 5.0  # seconds to wait for the lock: a training that was just killed may take as long to exit


class FolderLock:
    """Lock of one folder at a time, which rank 0 holds for all ranks of a training."""

    def __init__(self):
        self._held: FileLock | None = None  # the acquired lock, on rank 0 alone

    def take(self, folder: Path) -> None:
        """Make `folder` and lock it until `release`; raise a UserError on all ranks if another training holds it.

        A second call for the same folder changes nothing, one for another folder frees the first. If the folder cannot
        be written or the disk has no locks, nothing is locked and no error is raised.
        """
        agreement.broadcast_from_first(lambda: self._take(folder.absolute()))

    def release(self) -> None:
        """Free the folder for the next training."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def _take(self, folder: Path) -> None:
        """Do the work of `take` on rank 0; folder: an absolute path."""
        file = folder / NAME
        if self._held is not None and Path(self._held.lock_file) == file:  # locked by an earlier call
            return
        self.release()

        lock = FileLock(file)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=GRACE)
        except Timeout:
            holder = ""  # which process it is, if it has written that into the file
            with suppress(OSError):
                holder = f" ({file.read_text().strip()[:100]})"
            problem = f"another training holds it{holder}; wait for its end, or give another --save-dir"
            raise UserError(folder, problem) from None
        except (OSError, NotImplementedError):
            # a read-only folder, or a disk without locks; if nothing can be written, the first save says why
            return

        self._held = lock
        with suppress(OSError):  # for the error message of another training
            file.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
