"""SIGTERM and SIGUSR1, by which schedulers announce the end: noticed at once, answered between two updates."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

from torch.utils.data._utils import signal_handling

from ..compat.wrapping import wrap

ANSWERED = (signal.SIGTERM, signal.SIGUSR1)
ECHO = 3.0  # seconds in which one signal may come twice: from the scheduler, and passed on by torchrun
_first: dict[int, float] = {}  # signal -> when it came
_answered: set[int] = set()
_before: dict[int, object] = {}  # signal -> handler, while a training is watched over


def install() -> None:
    """Patches how torch's processes that load data take signals; may be called again."""
    wrap(signal_handling, "_set_worker_signal_handlers", _spare_worker)


def watching() -> bool:
    """Is a training being watched over in this process?"""
    return bool(_before)


def received() -> int:
    """The number of the signal that came first, or 0."""
    return next(iter(_first), 0)


def watch() -> None:
    """From now on signals are noticed; a second one of a kind does what it does by default. In the main thread only."""
    if not _before and threading.current_thread() is threading.main_thread():
        _first.clear()
        _before.update({kind: signal.signal(kind, _notice) for kind in ANSWERED})


def unwatch() -> None:
    """The handlers that were there before; none for a signal that is answered by the end of the process.

    For when one rank has ended, torchrun sends the others the same signal again.
    """
    while _before:
        kind, handler = _before.popitem()
        signal.signal(kind, signal.SIG_IGN if kind in _answered else handler)


def answer(kind: int) -> None:
    """The process is about to end because of it."""
    _answered.add(kind)


def _notice(kind: int, frame) -> None:
    now = time.monotonic()
    if now - _first.setdefault(kind, now) > ECHO:
        signal.signal(kind, signal.SIG_DFL)
        os.kill(os.getpid(), kind)


def _spare_worker(original) -> None:
    """A process that loads data ends when its parent says so: a signal to all processes of a job is not for it.

    It would die, and the training of its death, before that has saved.
    """
    original()
    if threading.current_thread() is not threading.main_thread():
        return
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_parent, args=(multiprocessing.parent_process().pid,), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    while True:
        if signal.sigwaitinfo({signal.SIGTERM}).si_pid in (parent, os.getpid()):
            os._exit(0)
