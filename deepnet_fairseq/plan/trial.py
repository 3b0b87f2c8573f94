"""A model in fairseq's Trainer on made-up sentences, to measure what a plan says."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from fairseq.logging import metrics

from .. import config
from ..building import SPECIALS
from ..trainer import build_trainer, parse
from .fit import recomputation
from .objective import batch
from .setting import SHARDING_FLAGS, Setting

RUN = {"_name", "probe_dir", "checkpoint_activations", "checkpoint_every"}  # fields that the flags below say


class Trial:
    """The training of a setting, one process; `step` makes an update on a batch without padding."""

    def __init__(self, setting: Setting):
        self.setting = setting
        self.folder = tempfile.TemporaryDirectory(prefix="deepnet-plan-")
        for name, size in zip(setting.objective.dictionaries, setting.vocabularies, strict=False):
            words = "".join(f"w{number} 1\n" for number in range(size - SPECIALS - setting.objective.added))
            Path(self.folder.name, name).write_text(words, encoding="utf-8")
        args = parse(self._flags())
        for name in {field.name for field in dataclasses.fields(config.config_of(setting.cfg))} - RUN:
            setattr(args, name, getattr(setting.cfg, name))
        self.trainer = build_trainer(args)
        self.trainer.begin_epoch(1)
        self.batches = [self._batch(seed) for seed in range(setting.update_freq)]

    def step(self) -> None:
        """One update; half precision may spend some on finding its loss scale."""
        with metrics.aggregate("train_inner"):
            self.trainer.train_step(self.batches)

    def close(self) -> None:
        """Removes its folder."""
        self.folder.cleanup()

    def _flags(self) -> list[str]:
        setting, folder = self.setting, self.folder.name
        words = [folder, "--save-dir", folder, "--no-save", "--task", setting.objective.task, *setting.objective.flags]
        words += ["--arch", setting.cfg.arch, "--max-tokens", str(setting.max_tokens), "--lr", "1e-4"]
        words += ["--optimizer", setting.optimizer.name, "--lr-scheduler", "fixed", "--disable-validation"]
        words += ["--criterion", setting.criterion]
        words += ["--loss-chunk-tokens", str(setting.chunk)] if setting.chunk else []
        words += recomputation(setting.checkpoint_every).split() + setting.precision.flags.split()
        words += SHARDING_FLAGS[setting.sharding].split() + (["--cpu"] if setting.device.name == "cpu" else [])
        return words

    def _batch(self, seed: int) -> dict:
        setting = self.setting
        sentences = setting.max_tokens // setting.length
        return batch(setting.objective, setting.vocabularies, sentences, setting.length, setting.mask_prob, seed)
