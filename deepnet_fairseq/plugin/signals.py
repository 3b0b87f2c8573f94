"""Notice SIGTERM and SIGUSR1, by which schedulers announce the end of a job, for a training to answer with a save.

A handler only notes the signal. All processes of a training ask together, between two updates or two batches of a
validation, whether one came to any of them, and Run saves and ends the program.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from typing import Any

import torch

from .distributed import agreement

ANSWERED = (signal.SIGTERM, signal.SIGUSR1)
ECHO = 3.0  # seconds in which one signal may come twice: from the scheduler, and passed on by torchrun


class Stopped(Exception):
    """Raised when a signal came, and caught by Run.validate_and_save."""


class Signals:
    """The signals to this process that one training noted since it began to watch.

    told: whether a signal came to any process of the training, as the logs of the last update told it; None before
    that.
    """

    def __init__(self):
        self.told: bool | None = None
        self._came: dict[int, float] = {}  # signal -> when it came first
        self._before: dict[int, Any] = {}  # signal -> handler before; filled while watching
        self._answered: int | None = None  # the signal that the end of this process answers

    @property
    def watching(self) -> bool:
        """True from `watch` to `unwatch`."""
        return bool(self._before)

    @property
    def first(self) -> int:
        """Number of the signal that came first, 0 for none."""
        return next(iter(self._came), 0)

    def watch(self) -> None:
        """Catch signals from now on, in the main thread only; a second signal of a kind has its default effect."""
        if self.watching or threading.current_thread() is not threading.main_thread():
            return
        self._came.clear()
        for kind in ANSWERED:
            self._before[kind] = signal.signal(kind, self._notice)

    def unwatch(self) -> None:
        """Put the previous handlers back, and forget the signals.

        A handler of another training, which began to watch later, stays. The signal that the end of this process
        answers is ignored from now on: when one process has ended, torchrun sends it to the others again.
        """
        self._came.clear()
        while self._before:
            kind, before = self._before.popitem()
            if kind == self._answered:
                signal.signal(kind, signal.SIG_IGN)
            elif signal.getsignal(kind) == self._notice:
                signal.signal(kind, before)

    def raise_if_any(self, device: torch.device) -> None:
        """Raise Stopped if a signal came to any process of the training; all of them must call it together.

        device: the trainer's. After an update `told` knows the answer; else the processes exchange a number.
        """
        told, self.told = self.told, None
        if not self.watching:
            return
        if told is None:
            told = agreement.largest(self.first, device) > 0
        if told:
            raise Stopped

    def agreed(self, device: torch.device) -> signal.Signals:
        """Return the signal that came, the same on all processes. device: the trainer's."""
        return signal.Signals(agreement.largest(self.first, device))

    def answered(self, kind: signal.Signals) -> None:
        """Note that the end of this process answers the signal `kind`."""
        self._answered = kind

    def _notice(self, kind: int, frame) -> None:
        now = time.monotonic()
        is_echo = now - self._came.setdefault(kind, now) <= ECHO
        if not self.watching or not is_echo:  # of a training that has ended, or sent by somebody who will not wait
            signal.signal(kind, signal.SIG_DFL)
            os.kill(os.getpid(), kind)


def spare_worker(original) -> None:
    """Make a data-loading process ignore signals sent to the whole job; only its parent's SIGTERM ends it.

    Its death would end the training with an error before the checkpoint is saved.
    """
    original()
    if threading.current_thread() is not threading.main_thread():
        return
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    parent: Any = multiprocessing.parent_process()
    threading.Thread(target=_end_with_parent, args=(parent.pid,), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    while True:
        if signal.sigwaitinfo({signal.SIGTERM}).si_pid in (parent, os.getpid()):
            os._exit(0)
