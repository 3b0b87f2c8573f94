"""One candidate at one shape, alive: its model in fairseq's Trainer, and the clock that times its parts."""

from __future__ import annotations

import copy
import gc
import itertools
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache

import torch
from fairseq.logging import metrics
from torch.profiler import record_function

from ...plugin.trainer import build_trainer, parse
from .settings import Candidate, Settings, Shape

CLOCKS = {"wall": time.perf_counter, "process": time.process_time}
PARTS = ("forward", "backward", "clip", "optimizer")  # clip: the scaling by the sample size, the norm and the clipping
SPAN = "deepnet bench: "  # before a name, in a profiler's events


class Clock:
    """Seconds by name, of calls of watched functions since the last `read`.

    On a GPU a part is what lies between two events in the stream: nothing waits for it, so the parts are measured as
    they overlap with the CPU's work in a real run.
    """

    def __init__(self, device: torch.device, kind: str = "wall"):
        self.now, self.on_gpu = CLOCKS[kind], device.type == "cuda"
        self.spans: dict[str, list] = defaultdict(list)
        self.running: set[str] = set()

    def watched(self, function: Callable, name: str) -> Callable:
        """`function`, whose calls are counted under `name` from now on."""

        def call(*args, **kwargs):
            if name in self.running:  # a part of itself: counted once
                return function(*args, **kwargs)
            self.running.add(name)
            start = self._mark()
            try:
                with record_function(SPAN + name):
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


class Contender:
    """A candidate's model, task, criterion and optimiser, made from its flags; close() it to be rid of its memory.

    seconds: of "model", "trainer" (which moves it to its device), "optimizer", and of all three, "build".
    """

    def __init__(self, candidate: Candidate, shape: Shape, settings: Settings):
        self.settings = settings
        self.folder = tempfile.TemporaryDirectory(prefix="deepnet-bench-")
        args = copy.copy(_parsed((*settings.flags(), *shape.flags(), *candidate.flags)))
        args.save_dir = self.folder.name
        self.clock = Clock(settings.torch_device, settings.clock)
        self.trainer = build_trainer(args, self.clock.watched)
        self.clock.watched(self.trainer._build_optimizer, "optimizer")()
        self.seconds = self.clock.read()
        self.seconds["build"] = sum(self.seconds.values())

    @property
    def model(self) -> torch.nn.Module:
        return self.trainer.get_model()

    def parameters(self) -> int:
        """How many numbers its model has, a shared matrix once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def batches(self, count: int) -> list[dict]:
        """The first of epoch 1, the same for every candidate; fewer if the corpus is smaller."""
        iterator = self.trainer.get_train_iterator(epoch=1)
        self.trainer.begin_epoch(1)
        return list(itertools.islice(iterator.next_epoch_itr(shuffle=True), count))

    def step(self, batch: dict) -> dict | None:
        """An update, as fairseq-train makes it: what it logs, None where half precision overflowed."""
        with metrics.aggregate("train_inner"):
            return self.trainer.train_step([batch], raise_oom=True)

    def watch_parts(self) -> None:
        """From now on its clock reads PARTS of a step."""
        trainer = self.trainer
        for owner, attribute, name in (
            (trainer.criterion, "forward", "forward"),
            (trainer.optimizer, "backward", "backward"),
            (trainer.optimizer, "multiply_grads", "clip"),
            (trainer, "clip_grad_norm", "clip"),
            (trainer.task, "optimizer_step", "optimizer"),
        ):
            setattr(owner, attribute, self.clock.watched(getattr(owner, attribute), name))

    def timed_step(self, batch: dict) -> dict[str, float] | None:
        """Seconds of PARTS, the "rest" and the whole "step"; None where half precision overflowed: no update."""
        done = self.clock.watched(self.step, "step")(batch)
        seconds = self.clock.read()
        rest = seconds["step"] - sum(seconds.get(part, 0) for part in PARTS)
        return None if done is None else seconds | {"rest": rest}

    def close(self) -> None:
        """Frees its memory, on the GPU too, and removes its folder; it cannot be used any more."""
        self.folder.cleanup()
        self.trainer = None
        gc.collect()
        if self.settings.torch_device.type == "cuda":
            torch.cuda.empty_cache()


@lru_cache(maxsize=8)
def _parsed(flags: tuple[str, ...]):
    """A command line; it takes half a second."""
    return parse([*flags, "--disable-validation"])
