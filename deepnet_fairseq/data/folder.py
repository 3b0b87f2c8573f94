"""A new folder of prepared data: room on its disk, whole or absent, and nothing left by a run that was killed."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from ..errors import UserError
from ..files import whole
from .lines import writing

# Bytes a byte of text, measured: the text with marks and blanks, pieces as numbers of 2 or 4 bytes with their index.
IN_PIECES, SHORT_NUMBERS, LONG_NUMBERS = 1.6, 0.9, 1.4
SHORT = 65_500  # pieces that fairseq gives numbers of 2 bytes
LOCK = ".lock"  # in the folder, while a run fills it
ENDING = (signal.SIGTERM, signal.SIGHUP)  # sent by schedulers and by terminals that close


@contextmanager
def new_folder(dest: Path) -> Iterator[Path]:
    """Give a folder beside `dest` to fill, which takes the name `dest` if all went well, and else is removed.

    It is removed at the signals in ENDING too. SIGKILL and a power cut leave it, and the next call for the same `dest`
    removes it and says so. A lock on the folder tells it from that of a run that still works, here or on another host.
    Raises a UserError if the disk does not take it.
    """
    _remove_leftovers(dest)
    with _ended_by_signals(), _made_parents(dest), whole(dest) as part:
        with writing(dest, "name another place"):
            part.mkdir(parents=True)
        lock = FileLock(part / LOCK)
        lock.acquire()
        try:
            yield part
        finally:
            lock.release()
            (part / LOCK).unlink(missing_ok=True)


def need_space(folder: Path, needed: int, what: str) -> int:
    """Return the bytes that are free on the disk of `folder`, which may not exist; UserError if `needed` do not fit."""
    there = next(place for place in (folder.resolve(), *folder.resolve().parents) if place.exists())
    if needed > (free := shutil.disk_usage(there).free):
        needs, has = (tqdm.format_sizeof(size, "B") for size in (needed, free))
        raise UserError(f"{what}: needs {needs}, {folder} has {has} free; free some or name another place")
    return free


def say_space(folder: Path, needed: int, what: str) -> None:
    """Print the bytes that `what` needs on the disk of `folder`, and those that are free; UserError as need_space."""
    free = need_space(folder, needed, what)
    if needed:
        needs, has = (tqdm.format_sizeof(size, "B") for size in (needed, free))
        print(f"| {what}: needs about {needs} of disk, {has} are free", flush=True)


def prepared_size(text: int, pieces: int) -> int:
    """Estimate the bytes of a text in pieces and binarised; text: its own; pieces: of the vocabulary."""
    return int(text * IN_PIECES) + binarised_size(text, pieces)


def binarised_size(text: int, pieces: int) -> int:
    """Estimate the bytes of a text's binarised data alone."""
    return int(text * (SHORT_NUMBERS if pieces < SHORT else LONG_NUMBERS))


def _remove_leftovers(dest: Path) -> None:
    dest = dest.resolve()
    left = dest.parent.glob(f"{escape(dest.name)}.*.part") if dest.parent.is_dir() else ()
    for part in sorted(left):
        if not part.is_dir() or part.is_symlink():
            continue
        lock = FileLock(part / LOCK)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            print(f"| {part}: another run is filling it, for {dest} too", file=sys.stderr)
            continue
        shutil.rmtree(part)
        lock.release()
        print(f"| removed {part}, left by a run that was killed; this one starts anew", flush=True)


@contextmanager
def _made_parents(dest: Path) -> Iterator[None]:
    """Remove the folders above `dest` that were made for it if the context fails."""
    missing = [folder for folder in dest.resolve().parents if not folder.exists()]
    try:
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
        raise


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Leave the context by SystemExit when a signal of ENDING comes, so that it is cleared up."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return
    unanswered = [kind for kind in ENDING if signal.getsignal(kind) is signal.SIG_DFL]  # nohup ignores SIGHUP
    before = {kind: signal.signal(kind, lambda number, _: sys.exit(128 + number)) for kind in unanswered}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
