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

from ..distributed import agreement
from ..errors import UserError

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
    deadline = time.monotonic() + GRACE
    while True:
        try:
            _hold = _Hold(folder)
            return
        except UserError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.1)


class _Hold:
    """The lock and the file of one folder; UserError if another has them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._file, self._over = folder, folder / HEARTBEAT, threading.Event()
        self._mine = {"host": socket.gethostname(), "pid": os.getpid(), "begun": time.strftime("%Y-%m-%d %H:%M:%S")}
        self._lock = self._locked()
        try:
            if self._of_another():
                raise self._taken()
            self._write()
        except UserError:
            self.unlock()
            raise
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def end(self) -> None:
        """The file goes, unless another has taken over since; then the lock."""
        self._over.set()
        if self._read() == self._mine:
            with suppress(OSError):
                self._file.unlink()
        self.unlock()

    def _locked(self) -> int | None:
        """A handle of the folder with the lock on it; None where the file system has none, as NFS for folders."""
        handle = None
        try:
            handle = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except OSError as error:
            if handle is not None:
                os.close(handle)
            if isinstance(error, BlockingIOError):
                raise self._taken() from None
            return None

    def unlock(self) -> None:
        """Lets go of the lock, or, in a process forked off the one that has it, of the copy."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _of_another(self) -> bool:
        """Does the file tell of a training that may be alive?"""
        age = self._age()
        if age is None or age > STALE:
            return False
        told = self._read()
        if told is None:
            return age < GRACE / 2  # it is just being written, or was killed there
        if told["host"] != self._mine["host"]:
            return True
        return self._lock is None and told["pid"] != os.getpid() and _alive(told["pid"])

    def _taken(self) -> UserError:
        told, age = self._read(), self._age()
        if told is None:
            return UserError(f"{self.folder}: another training holds it; wait for its end, or give another --save-dir")
        holder = f"process {told['pid']} on {told['host']}, begun {told.get('begun')}, heard of {age or 0:.0f} s ago"
        way_out = "wait for its end, or give another --save-dir"
        if told["host"] != self._mine["host"]:
            way_out += f"; if it is gone, remove {self._file}, which counts for {STALE / 60:.0f} minutes"
        return UserError(f"{self.folder}: another training holds it ({holder}); {way_out}")

    def _age(self) -> float | None:
        """Seconds since the last beat; None without a file."""
        try:
            return abs(time.time() - self._file.stat().st_mtime)
        except OSError:
            return None

    def _read(self) -> dict | None:
        try:
            told = json.loads(self._file.read_text())
            return told if isinstance(told["host"], str) and isinstance(told["pid"], int) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self) -> None:
        """In place of one that counts no longer; two that come together cannot both make it."""
        try:
            self._file.unlink(missing_ok=True)
            handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            raise self._taken() from None
        except OSError:  # read-only, or full: fairseq will tell, or the disk has room again at the next save
            return
        try:
            os.write(handle, json.dumps(self._mine).encode())
        except OSError:
            self._file.unlink(missing_ok=True)
        finally:
            os.close(handle)

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            with suppress(OSError):
                os.utime(self._file)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True
