"""Make a new folder of prepared data: check the room on its disk, fill it whole or not at all, remove leftovers."""

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

# Bytes for each byte of text, measured
IN_PIECES = 1.6  # the text in pieces, with their marks and blanks
SHORT_NUMBERS = 0.9  # binarised, pieces as numbers of 2 bytes, with the index
LONG_NUMBERS = 1.4  # the same with numbers of 4 bytes
SHORT = 65_500  # smallest vocabulary, in pieces, that fairseq gives numbers of 4 bytes
LOCK = ".lock"  # in the folder, while a run fills it
ENDING = (signal.SIGTERM, signal.SIGHUP)  # sent by schedulers and by terminals that close


@contextmanager
def new_folder(dest: Path) -> Iterator[Path]:
    """Give a folder beside `dest` to fill, which takes the name `dest` if all went well, and else is removed.

    It is removed at the signals in ENDING too. SIGKILL and a power cut leave it, and the next call for the same `dest`
    removes it and says so. A folder that another run still fills, on this host or another, stays: that run holds a lock
    on it. Raises a UserError if the disk does not take the folder.
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
    """Return the bytes that are free on the disk of `folder`, which need not exist yet.

    Raises a UserError if the bytes `needed` do not fit; what: the thing that needs them, for the message.
    """
    existing = next(place for place in (folder.resolve(), *folder.resolve().parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        needs = tqdm.format_sizeof(needed, "B")
        has = tqdm.format_sizeof(free, "B")
        raise UserError(f"{what}: needs {needs}, {folder} has {has} free; free some or name another place")
    return free


def say_space(folder: Path, needed: int, what: str) -> None:
    """Print the bytes that `what` needs on the disk of `folder`, and those that are free, unless none are needed.

    Raises a UserError if they do not fit, as need_space.
    """
    free = need_space(folder, needed, what)
    if needed:
        needs = tqdm.format_sizeof(needed, "B")
        has = tqdm.format_sizeof(free, "B")
        print(f"| {what}: needs about {needs} of disk, {has} are free", flush=True)


def prepared_size(text: int, pieces: int) -> int:
    """Estimate the bytes of a text in pieces and its binarised data together.

    text: bytes of the text; pieces: size of the vocabulary.
    """
    return int(text * IN_PIECES) + binarised_size(text, pieces)


def binarised_size(text: int, pieces: int) -> int:
    """Estimate the bytes of a text's binarised data alone; text, pieces: as in prepared_size."""
    bytes_per_byte = SHORT_NUMBERS if pieces < SHORT else LONG_NUMBERS
    return int(text * bytes_per_byte)


def _remove_leftovers(dest: Path) -> None:
    """Remove the folders that killed runs left beside `dest`, and say so; spare those that a run still fills."""
    dest = dest.resolve()
    if not dest.parent.is_dir():
        return

    for part in sorted(dest.parent.glob(f"{escape(dest.name)}.*.part")):
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

    def leave(number, _frame):
        sys.exit(128 + number)

    replaced = {}
    for kind in ENDING:
        if signal.getsignal(kind) is signal.SIG_DFL:  # others have an answer already: nohup ignores SIGHUP
            replaced[kind] = signal.signal(kind, leave)
    try:
        yield
    finally:
        for kind, handler in replaced.items():
            signal.signal(kind, handler)
