"""A training holds its --save-dir: a second one there would replace and remove what the first saves.

On one host by flock on the folder itself, which ends with the process however that ends. For disks that hosts share,
and file systems without flock, by a file that names the holder and is touched every minute.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from ...errors import UserError
from ..distributed import agreement

HEARTBEAT = "in_use.json"
BEAT, STALE = 60.0, 600.0  # seconds between two beats; after which the holder counts as gone
GRACE = 5.0  # seconds in which a process that was killed may still be on its way out
_hold: _Hold | None = None  # of this process


def take(folder: Path) -> None:
    """Rank 0 holds `folder` until `release`, and the folder is there; UserError on all ranks if another training does.

    A second call for the same folder changes nothing, one for another lets go of the first.
    """
    agreement.from_first(lambda: _take(folder.absolute()))


def release() -> None:
    """Lets go of the folder; the next training may begin there."""
    global _hold
    if _hold is not None:
        _hold.end()
        _hold = None


def _forget() -> None:
    """In a process that was forked, as one that loads data: it would hold the folder when the training is dead."""
    global _hold
    if _hold is not None:
        _hold.unlock()
        _hold = None


os.register_at_fork(after_in_child=_forget)


def _take(folder: Path) -> None:
    global _hold
    if _hold is not None and _hold.folder == folder:
        return
    release()
    with suppress(OSError):  # fairseq tells why it cannot be written to
        folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        return
    hold, deadline = _Hold(folder), time.monotonic() + GRACE
    while not hold.begin():
        if time.monotonic() >= deadline:
            raise UserError(hold.taken())
        time.sleep(0.1)
    _hold = hold


class _Hold:
    """The lock and the file of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._file, self._over, self._lock = folder, folder / HEARTBEAT, threading.Event(), None
        self._mine = {"host": socket.gethostname(), "pid": os.getpid(), "begun": time.strftime("%Y-%m-%d %H:%M:%S")}

    def begin(self) -> bool:
        """Is the folder ours now?"""
        try:
            self._lock = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            return False
        except OSError:  # a file system that has none, as NFS for folders
            self.unlock()
        if self._of_another() or not self._write():
            self.unlock()
            return False
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        return True

    def end(self) -> None:
        """The file goes, unless another has taken over since; then the lock."""
        self._over.set()
        if self._read()[0] == self._mine:
            with suppress(OSError):
                self._file.unlink()
        self.unlock()

    def unlock(self) -> None:
        """Lets go of the lock, or, in a process forked off the one that has it, of the copy."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def taken(self) -> str:
        """What to say to whoever comes second."""
        told, age = self._read()
        holder, way_out = "", "wait for its end, or give another --save-dir"
        if told is not None:
            holder = f" (process {told['pid']} on {told['host']}, begun {told.get('begun')}, heard of {age:.0f} s ago)"
            if told["host"] != self._mine["host"]:
                way_out += f"; if it is gone, remove {self._file}, which counts for {STALE / 60:.0f} minutes"
        return f"{self.folder}: another training holds it{holder}; {way_out}"

    def _read(self) -> tuple[dict | None, float]:
        """What the file tells, None if it names nobody, and seconds since the last beat; for ever without a file."""
        try:
            age = abs(time.time() - self._file.stat().st_mtime)
            told = json.loads(self._file.read_text())
            return (told if isinstance(told["host"], str) and isinstance(told["pid"], int) else None), age
        except OSError:
            return None, float("inf")
        except (ValueError, KeyError, TypeError):
            return None, age

    def _of_another(self) -> bool:
        """Does the file tell of a training that may be alive?"""
        told, age = self._read()
        if told is None:
            return age < GRACE / 2  # it is just being written, or was killed there
        here = told["host"] == self._mine["host"]
        return age <= STALE and not (here and (self._lock is not None or not _alive(told["pid"])))

    def _write(self) -> bool:
        """In place of one that counts no longer; of two that come together one makes it."""
        try:
            self._file.unlink(missing_ok=True)
            with self._file.open("x") as file:
                file.write(json.dumps(self._mine))
        except FileExistsError:
            return False
        except OSError:  # read-only, or full: fairseq will tell, or the disk has room again at the next save
            with suppress(OSError):
                self._file.unlink()
        return True

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            with suppress(OSError):
                os.utime(self._file)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's
        return True
    except OSError:
        return False
    return pid != os.getpid()
