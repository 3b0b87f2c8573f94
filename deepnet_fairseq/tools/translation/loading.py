"""Models that stay loaded in a server: each once in a process, for all of its threads, and again behind a fork."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # before Process(): see there
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

KEPT = 4  # models that stay loaded; the least recently used one gives way
PATIENCE = 60  # seconds that a fork waits for a thread that loads a model


class Process:
    """The process that models are loaded in. One thread loads at a time, and a fork waits until it is done.

    Imports of libraries need that: a fork in the midst of one would leave its module locked in the child for ever. So
    does transformers, whose lazy imports and loading fail in several threads at once. Of functions to call before a
    fork Python calls the last registered one first. concurrent.futures and logging, whose locks a thread that loads may
    need, register theirs when they are imported, so that they take their locks after the wait.
    """

    def __init__(self):
        self.loading = threading.RLock()
        self._loading_intact = True  # False if a fork did not wait for a thread that loaded a model
        self.forked = False  # after torch was used
        self._uses_torch = False
        self._bound: WeakSet = WeakSet()  # engines that work in this process alone
        os.register_at_fork(
            before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child
        )  # fmt: skip

    @contextmanager
    def load(self) -> Iterator[None]:
        """Import libraries and load models, alone among the threads; UserError where a fork has cut off another."""
        with self.loading:
            if not self._loading_intact:
                raise UserError(
                    "this process was forked while another thread loaded a model; load models before forking, or in "
                    "the new process alone"
                )
            yield

    def bind(self, engine: Any) -> None:
        """Note an engine that works in this process alone: in a child its attribute `lost` becomes True."""
        self._bound.add(engine)

    def check(self, engine: Any) -> None:
        """Raise a UserError for an engine that was lost in a fork: it would wait for ever for threads of the parent."""
        if engine.lost:
            raise UserError("this model was loaded before the process was forked; load it again in the new process")

    def use_torch(self, choose: Callable[[], int]) -> int:
        """Return with how many threads torch computes: as many as `choose` sets and returns, in a forked child one.

        OpenMP would wait there for ever for threads of the parent, which a fork does not copy.
        """
        import torch

        self._uses_torch = True
        if not self.forked:
            return choose()
        torch.set_num_threads(1)
        return 1

    def _before(self) -> None:
        """Wait for a thread that loads a model, and keep others from it until the process is forked."""
        self._held = self.loading.acquire(timeout=PATIENCE)

    def _in_parent(self) -> None:
        if self._held:
            self.loading.release()

    def _in_child(self) -> None:
        """Begin with new locks and one thread of torch; engines that work in the parent alone are lost."""
        self._loading_intact = self._loading_intact and self._held
        self.loading = threading.RLock()
        for engine in self._bound:
            # CTranslate2's threads do not come along, and its models wait for them when they are freed, at the latest
            # when the process ends. A reference that nobody gives back keeps each model as it is.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine.model))
            engine.lost = True
        self._bound = WeakSet()

        if self._uses_torch:
            self.forked = True
            self.use_torch(lambda: 1)


class _Entry:
    """A model, None until it is loaded, and the lock of the thread that loads it."""

    def __init__(self, model: Any = None):
        self.model = model
        self.lock = threading.Lock()


class Models:
    """The models that were used last, at most `most` of them. A forked child begins with those that work there."""

    def __init__(self, most: int = KEPT):
        self.most = most
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        os.register_at_fork(after_in_child=self._in_child)

    def get(self, key: Hashable, load: Callable[[], Any]) -> Any:
        """Return the model of a key; the first thread that asks for it calls `load`, and the others wait for it."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self.most:
                self._entries.popitem(last=False)

        with entry.lock:
            if entry.model is None:  # an error of load() leaves it so, and the next call tries again
                entry.model = load()
            return entry.model

    def _in_child(self) -> None:
        """Replace all locks, which another thread of the parent may have held, and drop models that were lost."""
        entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        for key, entry in self._entries.items():
            if entry.model is not None and not entry.model.engine.lost:
                entries[key] = _Entry(entry.model)
        self._lock = threading.Lock()
        self._entries = entries


PROCESS = Process()
