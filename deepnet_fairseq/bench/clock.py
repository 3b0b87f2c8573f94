"""Time of parts of a step: wall or processor time on a CPU, events in the stream on a GPU."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

import torch

CLOCKS = {"wall": time.perf_counter, "process": time.process_time}


class Clock:
    """Seconds by name, of calls of watched functions since the last `read`.

    On a GPU a part is what lies between two events in the stream: nothing waits for it, so the parts are measured as
    they overlap with the CPU's work in a real run.
    """

    def __init__(self, device: torch.device, kind: str = "wall"):
        self.now, self.on_gpu = CLOCKS[kind], device.type == "cuda"
        self.spans: dict[str, list] = defaultdict(list)
        self.running: set[str] = set()

    def watch(self, owner: object, attribute: str, name: str) -> None:
        """Replaces a method of this one object by itself, watched."""
        setattr(owner, attribute, self.watched(getattr(owner, attribute), name))

    def watched(self, function: Callable, name: str) -> Callable:
        """`function`, whose calls are counted under `name` from now on."""

        def call(*args, **kwargs):
            if name in self.running:  # a part of itself: counted once
                return function(*args, **kwargs)
            self.running.add(name)
            start = self._mark()
            try:
                return function(*args, **kwargs)
            finally:
                self.spans[name].append((start, self._mark()))
                self.running.discard(name)

        return call

    def read(self) -> dict[str, float]:
        """Name -> seconds; forgets them. Waits for the GPU."""
        if self.on_gpu:
            torch.cuda.synchronize()
        found = {name: sum(self._between(*span) for span in spans) for name, spans in self.spans.items()}
        self.spans.clear()
        return found

    def _mark(self):
        if not self.on_gpu:
            return self.now()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, start, end) -> float:
        return start.elapsed_time(end) / 1000 if self.on_gpu else end - start
