"""Make a new folder of prepared data, which appears under its name whole or not at all.

It is filled under the name NAME.PROCESS.part (see files.whole), with the number of the process. A process that is
killed leaves it under this name, and the next one removes it. Its size is estimated before, to tell whether the disk
has the space.
"""

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

# Bytes on disk for each byte of text, measured
IN_PIECES = 1.6  # the text cut into pieces, with SentencePiece's marks and the blanks between
SHORT_NUMBERS = 0.9  # the binarised data, .bin and .idx, if each piece is a number of 2 bytes
LONG_NUMBERS = 1.4  # the same if each piece is a number of 4 bytes
LONG_FROM = 65_500  # size of the dictionary from which on fairseq's numbers have 4 bytes (best_fitting_int_dtype)
LOCK = ".lock"  # lock file in the folder, while a run fills it
ENDING = (signal.SIGTERM, signal.SIGHUP)  # sent by schedulers and by terminals that close


@contextmanager
def new_folder(dest: Path) -> Iterator[Path]:
    """Give a new folder beside `dest` to fill, which gets the name `dest` at the end of the context.

    It is removed if the context raises, and at the signals in ENDING. SIGKILL and a power cut leave it; the next call
    for the same `dest` removes it and says so. While a process fills the folder it holds a lock on a file in it, so
    that others, on this host or another one, do not take it for such a leftover.

    Raises a UserError if the folder cannot be made.
    """
    _remove_leftovers(dest)
    with _exit_at_signals(), _parents_removed_on_error(dest), whole(dest) as part:
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
    """Raise a UserError if the disk of `folder` has less than `needed` bytes free; return how many are free.

    folder: need not exist yet
    what: the thing that needs the bytes, for the message
    """
    folder_and_parents = (folder.resolve(), *folder.resolve().parents)
    existing = next(place for place in folder_and_parents if place.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        needs = tqdm.format_sizeof(needed, "B")
        has = tqdm.format_sizeof(free, "B")
        raise UserError(what, f"needs {needs}, {folder} has {has} free; free some or name another place")
    return free


def say_space(folder: Path, needed: int, what: str) -> None:
    """Print how much space is needed and how much is free on the disk of `folder`; print nothing if none is needed.

    folder: need not exist yet
    needed: bytes
    what: the thing that needs them, for the line

    Raises a UserError if less is free.
    """
    free = need_space(folder, needed, what)
    if needed:
        needs = tqdm.format_sizeof(needed, "B")
        has = tqdm.format_sizeof(free, "B")
        print(f"| {what}: needs about {needs} of disk, {has} are free", flush=True)


def prepared_size(text: int, pieces: int) -> int:
    """Estimate the bytes on disk of a text cut into pieces and its binarised data together.

    text: bytes of the text
    pieces: size of the vocabulary
    """
    return int(text * IN_PIECES) + binarised_size(text, pieces)


def binarised_size(text: int, pieces: int) -> int:
    """Estimate the bytes on disk of a text's binarised data alone; text, pieces: as in prepared_size."""
    bytes_per_byte = SHORT_NUMBERS if pieces < LONG_FROM else LONG_NUMBERS
    return int(text * bytes_per_byte)


def _remove_leftovers(dest: Path) -> None:
    """Remove the folders that killed processes left beside `dest`, and say so; spare those being filled."""
    dest = dest.resolve()
    if not dest.parent.is_dir():  # then nothing can be beside `dest`
        return

    for part in sorted(dest.parent.glob(f"{escape(dest.name)}.*.part")):
        process = part.name.removeprefix(f"{dest.name}.").removesuffix(".part")
        if not process.isdecimal() or not part.is_dir() or part.is_symlink():  # not made by new_folder
            continue
        lock = FileLock(part / LOCK)
        try:
            lock.acquire(blocking=False)
        except Timeout:  # the process that fills it has the lock
            print(f"| {part}: another run is filling it, for {dest} too", file=sys.stderr)
            continue
        shutil.rmtree(part)
        lock.release()
        print(f"| removed {part}, left by a run that was killed; this one starts anew", flush=True)


@contextmanager
def _parents_removed_on_error(dest: Path) -> Iterator[None]:
    """If the context raises, remove the folders above `dest` that did not exist before it, as far as they are empty."""
    missing = [folder for folder in dest.resolve().parents if not folder.exists()]  # the deepest first
    try:
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):  # it was not made, or is not empty
                folder.rmdir()
        raise


@contextmanager
def _exit_at_signals() -> Iterator[None]:
    """Raise SystemExit in the context when a signal of ENDING comes, so that the contexts around it clear up.

    A signal that the program handles itself keeps its handler. Outside the main thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets only the main thread set handlers
        return

    def leave(number, _frame):
        sys.exit(128 + number)  # the exit status that shells give to a process ended by a signal

    replaced = {}
    for kind in ENDING:
        if signal.getsignal(kind) is signal.SIG_DFL:  # another handler stays: nohup has SIGHUP ignored, for example
            replaced[kind] = signal.signal(kind, leave)
    try:
        yield
    finally:
        for kind, handler in replaced.items():
            signal.signal(kind, handler)
