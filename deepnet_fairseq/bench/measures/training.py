"""The update of fairseq's Trainer, whole and in its parts."""

from __future__ import annotations

from functools import cached_property

from ..contender import Contender
from ..roofline import training_flops
from .trial import Trial

PARTS = ("forward", "backward", "clip", "optimizer")  # clip: the scaling by the sample size, the norm and the clipping


class Training(Trial):
    """Updates of fairseq's Trainer; a repeat is a batch.

    Quantities: seconds of PARTS, of the "rest" and of the whole "step"; target tokens per second; flops per second of
    the model's products.
    """

    name = "train"

    @cached_property
    def warmup(self) -> int:
        return self.settings.warmup

    def enter(self, candidate) -> Watched:
        return Watched(super().enter(candidate), self.warmup + self.settings.repeats)

    def run(self, contender: Watched, repeat: int) -> dict[str, float] | None:
        batch = contender.batch(repeat)
        seconds = contender.step(batch)
        if seconds is None:
            return None
        flops = training_flops(self.shape, self.settings.vocabulary, batch)
        return seconds | {
            "tokens per second": batch["ntokens"] / seconds["step"],
            "flops per second": flops / seconds["step"],
        }

    def facts(self, contender: Watched) -> dict:
        tokens = [contender.batch(repeat)["ntokens"] for repeat in range(self.settings.repeats)]
        return super().facts(contender) | {"tokens": tokens}


class Watched:
    """A contender whose steps are timed in parts, and its batches."""

    def __init__(self, contender: Contender, batches: int):
        self.contender, self.batches = contender, contender.batches(batches)
        clock, trainer = contender.clock, contender.trainer
        self.parameters, self.close = contender.parameters, contender.close
        clock.watch(trainer.criterion, "forward", "forward")
        clock.watch(trainer.optimizer, "backward", "backward")
        clock.watch(trainer.optimizer, "multiply_grads", "clip")
        clock.watch(trainer, "clip_grad_norm", "clip")
        clock.watch(trainer.task, "optimizer_step", "optimizer")
        self._step = clock.watched(contender.step, "step")

    def batch(self, repeat: int) -> dict:
        """That of a repeat, after those of the warm-up; from the start again where the corpus is small."""
        return self.batches[repeat % len(self.batches)]

    def step(self, batch: dict) -> dict[str, float] | None:
        """Seconds by part; None where half precision overflowed and no update was made."""
        done = self._step(batch)
        seconds = self.contender.clock.read()
        if done is None:
            return None
        return seconds | {"rest": seconds["step"] - sum(seconds[part] for part in PARTS)}
