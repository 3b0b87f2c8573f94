"""Trainings of planned settings in fairseq's Trainer, on generated sentences."""

from __future__ import annotations

import dataclasses
import tempfile

import torch

from deepnet_fairseq.core.models import SPECIALS
from deepnet_fairseq.plugin import flags
from deepnet_fairseq.plugin.building import blank_task
from deepnet_fairseq.plugin.trainer import build_trainer, parse_training_flags
from deepnet_fairseq.tools.plan.setting import Setting, recomputation_flags

PADDING = 1
RUN = {"_name", "probe_dir", "checkpoint_activations", "checkpoint_every"}  # fields that the flags below set
TRANSLATION = ("--source-lang", "xx", "--target-lang", "yy", "--label-smoothing", "0.1")


class PlannedTraining:
    """Training on one process; `step` makes an update on batches without padding."""

    def __init__(self, setting: Setting):
        self.setting = setting
        self.folder = tempfile.TemporaryDirectory(prefix="deepnet-plan-")
        names = ("dict.xx.txt", "dict.yy.txt") if setting.objective.translates else ("dict.txt",)
        for name, size in zip(names, setting.vocab):  # the task adds the mask symbol itself
            blank_task(size - setting.objective.masks).source_dictionary.save(f"{self.folder.name}/{name}")
        args = parse_training_flags(self._flags())
        for field in dataclasses.fields(flags.config_of(setting.cfg)):
            if field.name not in RUN and hasattr(setting.cfg, field.name):
                setattr(args, field.name, getattr(setting.cfg, field.name))
        self.trainer = build_trainer(args)
        self.trainer.begin_epoch(1)
        self.batches = [self._batch(seed) for seed in range(setting.update_freq)]

    def step(self) -> None:
        self.trainer.train_step(self.batches)

    def close(self) -> None:
        self.folder.cleanup()

    def _flags(self) -> list[str]:
        setting, objective = self.setting, self.setting.objective
        half = "" if setting.precision == "fp32" else f"--{setting.precision[-4:]} --{setting.precision}"
        words = (
            f"--no-save --disable-validation --task {objective.task} --arch {setting.cfg.arch} --lr 1e-4 --cpu "
            f"--lr-scheduler fixed --max-tokens {setting.max_tokens} --optimizer {setting.optimizer} "
            f"--criterion {setting.criterion} {recomputation_flags(setting.checkpoint_every)} {half}"
        )
        return [self.folder.name, *(TRANSLATION if objective.translates else ()), *words.split()]

    def _batch(self, seed: int) -> dict:
        setting, generator = self.setting, torch.Generator().manual_seed(seed)
        sentences = setting.max_tokens // setting.length

        def tokens(vocabulary: int) -> torch.Tensor:
            return torch.randint(SPECIALS, vocabulary, (sentences, setting.length), generator=generator)

        net_input, target = {"src_tokens": tokens(setting.vocab[0])}, tokens(setting.vocab[1])
        if setting.objective.translates:
            net_input["prev_output_tokens"] = tokens(setting.vocab[1])
        if setting.objective.masks:  # the first positions stand for the masked ones
            target.flatten()[setting.predicted_tokens :] = PADDING
        net_input["src_lengths"] = torch.full((sentences,), setting.length)
        sample = {"net_input": net_input, "target": target, "ntokens": target.numel()}
        return sample | {"id": torch.arange(sentences), "nsentences": sentences}
