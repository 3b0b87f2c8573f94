"""Disks that are full when we say so."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


def namespaces_work() -> bool:
    """May this user mount a disk of his own?"""
    if not shutil.which(NAMESPACE[0]):
        return False
    trial = [*NAMESPACE, "sh", "-c", 'mount -t tmpfs faults "$0"', "/mnt"]
    return subprocess.run(trial, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


class SmallDisk:
    """A disk in memory, mounted in a namespace that this process has to itself; a file takes the room when told."""

    name = "a disk of its own (tmpfs), filled up"

    def __init__(self, folder: Path, size: int) -> None:
        """size: bytes."""
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "faults", str(folder)], check=True)
        self.folder = folder
        self._ballast = folder / "ballast"

    def close(self) -> None:
        """Nothing on it is wanted any more."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    @property
    def full(self) -> bool:
        return self._ballast.exists()

    def fill(self, pids: list[int], checkpoint: int, chance: random.Random) -> None:
        """Leaves between nothing and nine tenths of a checkpoint; pids and checkpoint: whom it is for, bytes."""
        leave = int(chance.uniform(0, 0.9) * checkpoint)
        with self._ballast.open("wb") as file:
            while True:  # the training takes room and gives room at the same time
                state = os.statvfs(self.folder)
                room = state.f_bavail * state.f_frsize - leave
                try:
                    if room > 0:
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, room)
                    return
                except OSError:
                    continue

    def empty(self, pids: list[int]) -> None:
        self._ballast.unlink(missing_ok=True)


class ShortFiles:
    """Where no disk can be mounted: no file of the training may grow beyond a part of a checkpoint (RLIMIT_FSIZE)."""

    name = "a limit to the size of files (RLIMIT_FSIZE; no namespaces here)"
    full = False  # a new life is born without the limit

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.close = folder, lambda: None

    def fill(self, pids: list[int], checkpoint: int, chance: random.Random) -> None:
        self._limit(pids, int(chance.uniform(0.4, 0.9) * checkpoint))

    def empty(self, pids: list[int]) -> None:
        self._limit(pids, None)

    def _limit(self, pids: list[int], size: int | None) -> None:
        """size: bytes; None for the limit that this user has anyway."""
        for pid in pids:
            with suppress(ProcessLookupError):  # it was done before
                hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))
