"""Catch the signals that end a training, so that it is saved first.

SIGTERM and SIGUSR1 come from a cluster's scheduler, which announces the end of a job by them, SIGINT from Ctrl-C.

The signal handler only notes the signal. Between two updates or two batches of a validation all processes of a training
check together whether one of them got a signal (raise_if_signalled); then Run saves and ends the program.
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

CAUGHT = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
ECHO = 3.0  # seconds in which one signal may come twice: from the scheduler, and passed on by torchrun


class Stopped(Exception):
    """A process of the training has got a signal: Run.validate_and_save catches this, saves and ends the program."""


class Signals:
    """The signals to this process that one training has noted since it began to watch.

    any_process_signalled: whether any process of the training has got a signal; set by DeepTrainer whenever all
    processes sum their logs, None if they have not done so since the last check.
    """

    def __init__(self):
        self.any_process_signalled: bool | None = None
        self._first_times: dict[int, float] = {}  # signal -> time.monotonic() when it came first
        self._old_handlers: dict[int, Any] = {}  # signal -> handler before `watch`; empty unless watching
        self._ending: int | None = None  # the signal because of which this process ends

    @property
    def watching(self) -> bool:
        """True from `watch` to `unwatch`."""
        return bool(self._old_handlers)

    @property
    def first_signal(self) -> int:
        """Number of the signal that came to this process first, 0 for none."""
        return next(iter(self._first_times), 0)

    def watch(self) -> None:
        """Catch signals from now on; a second one of the same kind, more than ECHO later, has its default effect.

        Does nothing outside the main thread, where Python sets no signal handlers.
        """
        if self.watching or threading.current_thread() is not threading.main_thread():
            return
        self._first_times.clear()
        for kind in CAUGHT:
            self._old_handlers[kind] = signal.signal(kind, self._handle)

    def unwatch(self) -> None:
        """Put the previous handlers back, and forget the signals.

        If another training has begun to watch since, its handler stays. The signal that was given to `note_end` is
        ignored from now on: torchrun sends it to the other processes again when one of them has ended.
        """
        self._first_times.clear()
        while self._old_handlers:
            kind, old_handler = self._old_handlers.popitem()
            if kind == self._ending:
                signal.signal(kind, signal.SIG_IGN)
            elif signal.getsignal(kind) == self._handle:
                signal.signal(kind, old_handler)

    def raise_if_signalled(self, device: torch.device) -> None:
        """Raise Stopped if any process of the training has got a signal; all of them must call this together.

        device: the trainer's. Processes sum their logs in an update and after a batch of a validation; the first call
        after that reads any_process_signalled. Any other call asks the processes by a collective.
        """
        signalled = self.any_process_signalled
        self.any_process_signalled = None  # holds for one call
        if not self.watching:
            return
        if signalled is None:
            signalled = agreement.largest(self.first_signal, device) > 0
        if signalled:
            raise Stopped

    def agreed_signal(self, device: torch.device) -> signal.Signals:
        """Return the signal that came, the same on all processes, which must call this together.

        device: the trainer's.
        """
        return signal.Signals(agreement.largest(self.first_signal, device))

    def note_end(self, kind: signal.Signals) -> None:
        """Note that this process is about to end because of the signal `kind`, for `unwatch`."""
        self._ending = kind

    def _handle(self, kind: int, frame) -> None:
        """Note a signal; a signal handler, with the arguments that Python gives to one.

        Two signals have their default effect instead, which ends the process: one that comes after the training has
        ended, and one that comes again after more than ECHO, from a user who does not want to wait for the save.
        """
        now = time.monotonic()
        is_first_or_echo = now - self._first_times.setdefault(kind, now) <= ECHO
        if not self.watching or not is_first_or_echo:
            signal.signal(kind, signal.SIG_DFL)
            os.kill(os.getpid(), kind)


def spare_worker(original) -> None:
    """Make a data-loading process ignore signals to the whole job; SIGTERM ends it only from its parent or itself.

    original: torch's function that sets the signal handlers of such a process. With torch's handlers alone the process
    would end at once, and with it the training, by an error, before the checkpoint is saved.
    """
    original()
    if threading.current_thread() is not threading.main_thread():  # where Python sets no signal handlers
        return
    for kind in (signal.SIGUSR1, signal.SIGINT):
        signal.signal(kind, signal.SIG_IGN)
    # a handler is not told who has sent a signal: block SIGTERM, and let a thread wait for it
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    parent: Any = multiprocessing.parent_process()
    threading.Thread(target=_end_with_parent, args=(parent.pid,), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """Wait for SIGTERM, and end this process if it comes from the process `parent` or from itself; never return."""
    while True:
        if signal.sigwaitinfo({signal.SIGTERM}).si_pid in (parent, os.getpid()):
            os._exit(0)
