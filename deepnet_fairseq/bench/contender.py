"""One candidate at one shape, alive: its model in fairseq's Trainer, and the same batches as all others."""

from __future__ import annotations

import gc
import itertools
import tempfile

import torch
from fairseq.logging import metrics

from ..trainer import build_trainer, parse
from .candidate import Candidate
from .clock import CLOCKS, Clock
from .settings import Settings, Shape

PARTS = ("forward", "backward", "clip", "optimizer")  # of a step; what is left is its "rest"


class Contender:
    """build: seconds until the first step could be made: model, the move to its device, optimiser."""

    def __init__(self, candidate: Candidate, shape: Shape, settings: Settings, train: bool = True):
        self.candidate, self.settings = candidate, settings
        self.folder = tempfile.TemporaryDirectory(prefix="deepnet-bench-")
        flags = [*settings.flags(), *shape.flags(), *candidate.flags, f"--save-dir={self.folder.name}"]
        args = parse([*flags, "--disable-validation"])
        metrics.reset()
        now = CLOCKS[settings.clock]
        start = now()
        self.trainer = build_trainer(args)
        if train:
            self.trainer.optimizer  # noqa: B018  a property that builds it
        wait(settings.torch_device)
        self.build = now() - start
        self.clock = Clock(settings.torch_device, settings.clock)

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

    def watch(self) -> None:
        """The parts of a step are timed from now on."""
        trainer = self.trainer
        self.clock.watch(trainer.criterion, "forward", "forward")
        self.clock.watch(trainer.optimizer, "backward", "backward")
        self.clock.watch(trainer.optimizer, "multiply_grads", "clip")
        self.clock.watch(trainer, "clip_grad_norm", "clip")
        self.clock.watch(trainer.task, "optimizer_step", "optimizer")
        self.clock.watch(self, "_step", "step")

    def step(self, batch: dict) -> dict[str, float] | None:
        """One update: seconds of PARTS, of the "rest" and of the whole "step"; None where fp16 overflowed."""
        done = self._step(batch)
        seconds = self.clock.read()
        if done is None:
            return None
        seconds["rest"] = seconds["step"] - sum(seconds[part] for part in PARTS)
        return seconds

    def _step(self, batch: dict) -> dict | None:
        with metrics.aggregate("train_inner"):
            return self.trainer.train_step([batch], raise_oom=True)

    def close(self) -> None:
        self.folder.cleanup()
        self.trainer = None
        free(self.settings.torch_device)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def free(device: torch.device) -> None:
    """What nobody holds any more goes back."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
