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
        self._write_dictionaries()

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

    def _write_dictionaries(self) -> None:
        objective = self.setting.objective
        names = ["dict.xx.txt", "dict.yy.txt"] if objective.translates else ["dict.txt"]
        for name, size in zip(names, self.setting.vocab, strict=False):  # both sizes are given for one dictionary too
            task = blank_task(size - objective.masks)  # fairseq's task adds the mask symbol itself
            task.source_dictionary.save(f"{self.folder.name}/{name}")

    def _flags(self) -> list[str]:
        setting = self.setting
        objective = setting.objective
        languages = TRANSLATION if objective.translates else ()
        half = ""
        if setting.precision != "fp32":  # fp16 or bf16, or memory-efficient-fp16 or -bf16, which needs the other too
            half = f"--{setting.precision[-4:]} --{setting.precision}"
        words = (
            f"--no-save --disable-validation --task {objective.task} --arch {setting.cfg.arch} --lr 1e-4 --cpu "
            f"--lr-scheduler fixed --max-tokens {setting.max_tokens} --optimizer {setting.optimizer} "
            f"--criterion {setting.criterion} {recomputation_flags(setting.checkpoint_every)} {half}"
        )
        return [self.folder.name, *languages, *words.split()]

    def _batch(self, seed: int) -> dict:
        """Draw a batch of sentences of one length, as fairseq's datasets give it."""
        setting = self.setting
        generator = torch.Generator().manual_seed(seed)
        sentences = setting.max_tokens // setting.length

        def draw(vocabulary: int) -> torch.Tensor:
            return torch.randint(SPECIALS, vocabulary, (sentences, setting.length), generator=generator)

        net_input = {"src_tokens": draw(setting.vocab[0])}
        target = draw(setting.vocab[1])
        if setting.objective.translates:
            net_input["prev_output_tokens"] = draw(setting.vocab[1])
        if setting.objective.masks:  # the first positions stand for the masked ones
            target.flatten()[setting.predicted_tokens :] = PADDING
        net_input["src_lengths"] = torch.full((sentences,), setting.length)
        return {
            "id": torch.arange(sentences),
            "nsentences": sentences,
            "ntokens": target.numel(),
            "net_input": net_input,
            "target": target,
        }
