"""Saving a training, resuming it, and loading its model to translate with, each by fairseq's own functions."""

from __future__ import annotations

import os
from pathlib import Path

from fairseq import checkpoint_utils

from ..contender import Contender
from .trial import Trial

POSITION = {"train_iterator": {"epoch": 1, "version": 2, "iterations_in_epoch": 1}}  # without it none is resumed


class Checkpointing(Trial):
    """Saving, resuming and loading of a trained model.

    Quantities: seconds to save; to resume, into a model that is built; to load for translation, which builds it; bytes
    of the file. The file is in the page cache when it is read.
    """

    name = "checkpoint"
    warmup = 0

    def enter(self, candidate) -> Contender:
        contender = super().enter(candidate)
        for batch in contender.batches(10):
            if contender.step(batch):  # now the optimiser has a state
                break
        return contender

    def run(self, contender: Contender, repeat: int) -> dict[str, float]:
        path = Path(contender.folder.name) / "checkpoint.pt"
        clock, trainer = contender.clock, contender.trainer
        trainer.consolidate_optimizer()
        clock.watched(trainer.save_checkpoint, "save")(str(path), POSITION)
        size = os.path.getsize(path)
        clock.watched(trainer.load_checkpoint, "resume")(str(path))
        clock.watched(checkpoint_utils.load_model_ensemble, "load")([str(path)], task=trainer.task)
        path.unlink()
        return clock.read() | {"bytes": size}
