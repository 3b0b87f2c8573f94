"""Keep models loaded in a server, each once for all threads of a process, and keep forks of it from hanging.

A fork (os.fork, by which servers may start workers) copies only the thread that calls it. Locks that other
threads hold stay locked in the child for ever, and libraries wait there for threads that do not exist. `PROCESS` guards
imports and loading against this, and marks engines (engines.py) that cannot work in the child as `lost`; `Models` keeps
the models.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # this and logging must be imported before Process(): see there
import ctypes
import logging  # noqa: F401
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from ...errors import UserError

KEPT = 4  # how many models stay loaded; the least recently used one gives way
PATIENCE = 60  # seconds that a fork waits at most for a thread that loads a model


class Process:
    """The process that models are loaded in: one thread loads at a time, and a fork waits until it is done.

    One at a time, because transformers fails if several threads import parts of it or load models at once. A fork
    waits, because during an import it would leave the imported module locked in the child for ever.

    concurrent.futures and logging take locks of their own before a fork, which a thread that loads may need to finish.
    So the wait must come before theirs. All three use os.register_at_fork, and Python calls the functions `before` in
    the reverse order of their registration. Those two register theirs when they are imported, so they are imported
    above, before `PROCESS` is made below.
    """

    def __init__(self):
        self._loading = threading.RLock()  # held by the thread that loads
        self._held_for_fork = False  # whether the wait before the last fork ended with that lock held
        self._loading_intact = True  # False in a child whose fork gave up that wait
        self._uses_torch = False  # whether this process, or one that it was forked from, has called use_torch
        self._forked_with_torch = False  # whether this process was forked from one that used torch
        self._bound: WeakSet = WeakSet()  # engines that work in this process alone
        os.register_at_fork(
            before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child
        )  # fmt: skip

    @contextmanager
    def load_alone(self) -> Iterator[None]:
        """Enter a block that imports libraries and loads a model; other threads wait until it ends.

        UserError in a child that was forked while another thread was in such a block: what that thread imported is half
        done.
        """
        with self._loading:
            if not self._loading_intact:
                raise UserError(
                    "this process",
                    "was forked while another thread loaded a model; load models before forking, or in the new process "
                    "alone",
                )
            yield

    def bind(self, engine: Any) -> None:
        """Register an engine that works in this process alone: in a forked child its attribute `lost` becomes True.

        engine: of a class of engines.py.
        """
        self._bound.add(engine)

    def check_not_lost(self, engine: Any) -> None:
        """Raise a UserError for an engine that was lost in a fork: it would wait for ever for threads of the parent."""
        if engine.lost:
            raise UserError("this model", "was loaded before the process was forked; load it again in the new process")

    def use_torch(self, choose: Callable[[], int]) -> int:
        """Note that this process computes with torch, and return with how many threads.

        choose: returns that number, and may set it before. In a child that was forked from a process that used torch it
        is not called, and the number is set to 1: with more, OpenMP would wait for ever for the threads of the parent.
        """
        import torch

        self._uses_torch = True
        if not self._forked_with_torch:
            return choose()
        torch.set_num_threads(1)
        return 1

    def _before(self) -> None:
        """Wait before a fork until no thread loads, at most PATIENCE, and let none begin before the fork is done."""
        self._held_for_fork = self._loading.acquire(timeout=PATIENCE)

    def _in_parent(self) -> None:
        """Let threads load again after a fork."""
        if self._held_for_fork:
            self._loading.release()

    def _in_child(self) -> None:
        """Make a forked child usable: a new lock, lost engines marked as such, and one thread of torch."""
        # if _before gave up its wait, a thread of the parent was loading, and what it imported is half done here
        self._loading_intact = self._loading_intact and self._held_for_fork
        self._loading = threading.RLock()

        for engine in self._bound:
            # CTranslate2's threads do not come along, and its models wait for them when they are freed, at the latest
            # when the process ends. With one reference more than there are users, a model is never freed.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine.model))
            engine.lost = True
        self._bound = WeakSet()

        if self._uses_torch:
            import torch

            self._forked_with_torch = True
            torch.set_num_threads(1)  # see use_torch


class _Entry:
    """Entry of Models: a Translator, None until it is loaded, and a lock that a thread holds while it loads it."""

    def __init__(self, model: Any = None):
        self.model = model
        self.lock = threading.Lock()


class Models:
    """The Translators that were used last, at most `most` of them. A forked child begins with those that work there."""

    def __init__(self, most: int = KEPT):
        self.most = most
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        os.register_at_fork(after_in_child=self._in_child)

    def get(self, key: Hashable, load: Callable[[], Any]) -> Any:
        """Return the Translator of a key, loaded if it is not there yet.

        key: all arguments that it is loaded with; load: returns a Translator. The first thread that asks for a key
        calls `load`, and the others wait for it.
        """
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)  # the end has those that were used last
            while len(self._entries) > self.most:
                self._entries.popitem(last=False)

        with entry.lock:  # not self._lock, so that other models can be had while this one is loaded
            if entry.model is None:  # an error of load() leaves it so, and the next call tries again
                entry.model = load()
            return entry.model

    def _in_child(self) -> None:
        """Replace all locks, which other threads of the parent may have held, and drop models that are not usable.

        Not usable are those that another thread was loading, and those whose engine is lost. Functions for the child
        run in the order of their registration, so PROCESS, made before any Models, has marked the lost ones by now.
        """
        entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        for key, entry in self._entries.items():
            if entry.model is not None and not entry.model.engine.lost:
                entries[key] = _Entry(entry.model)
        self._lock = threading.Lock()
        self._entries = entries


PROCESS = Process()
