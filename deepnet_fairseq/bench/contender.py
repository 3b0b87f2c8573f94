"""One candidate at one shape, alive: its model in fairseq's Trainer."""

from __future__ import annotations

import gc
import itertools
import tempfile

import torch
from fairseq.logging import metrics

from ..trainer import build_trainer, parse
from .candidate import Candidate
from .clock import Clock
from .settings import Settings, Shape


class Contender:
    """seconds: of the parts of its making, "build" is their sum."""

    def __init__(self, candidate: Candidate, shape: Shape, settings: Settings):
        self.settings = settings
        self.folder = tempfile.TemporaryDirectory(prefix="deepnet-bench-")
        flags = (*settings.flags(), *shape.flags(), *candidate.flags, "--save-dir", self.folder.name)
        args = parse([*flags, "--disable-validation"])
        self.clock = Clock(settings.torch_device, settings.clock)
        self.trainer = self.clock.watched(build_trainer, "trainer")(args)
        self.clock.watched(self.trainer._build_optimizer, "optimizer")()
        self.seconds = self.clock.read()
        self.seconds["build"] = sum(self.seconds.values())

    @property
    def model(self) -> torch.nn.Module:
        return self.trainer.get_model()

    def parameters(self) -> int:
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

    def close(self) -> None:
        self.folder.cleanup()
        self.trainer = None
        gc.collect()
        if self.settings.torch_device.type == "cuda":
            torch.cuda.empty_cache()
