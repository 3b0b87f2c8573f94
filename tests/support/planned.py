"""Trainings of the settings that `deepnet plan` is asked about, in fairseq's Trainer, on sentences drawn at random."""

from __future__ import annotations

import dataclasses
import tempfile

import torch

from deepnet_fairseq.core.models import SPECIALS
from deepnet_fairseq.plugin import flags
from deepnet_fairseq.plugin.building import blank_task
from deepnet_fairseq.plugin.trainer import build_trainer, parse_training_flags
from deepnet_fairseq.tools.plan.setting import Setting, recomputation_flags

from .helpers import PAD

SET_BY_FLAGS = {"_name", "probe_dir", "checkpoint_activations", "checkpoint_every"}  # fields that _flags decides
TRANSLATION = ("--source-lang", "xx", "--target-lang", "yy", "--label-smoothing", "0.1")


class PlannedTraining:
    """Training of a planned setting in this process, on the CPU; `close` removes its files.

    trainer: fairseq's Trainer; batches: those of every update, without padding as a plan takes them to be
    """

    def __init__(self, setting: Setting):
        self.setting = setting
        self.folder = tempfile.TemporaryDirectory(prefix="deepnet-plan-")
        self._write_dictionaries()

        args = parse_training_flags(self._flags())
        for field in dataclasses.fields(flags.config_of(setting.cfg)):
            if field.name not in SET_BY_FLAGS and hasattr(setting.cfg, field.name):
                setattr(args, field.name, getattr(setting.cfg, field.name))
        self.trainer = build_trainer(args)
        self.trainer.begin_epoch(1)
        self.batches = [self._batch(seed) for seed in range(setting.update_freq)]

    def step(self) -> None:
        """Make an update."""
        self.trainer.train_step(self.batches)

    def close(self) -> None:
        """Remove the folder of the dictionaries."""
        self.folder.cleanup()

    def _write_dictionaries(self) -> None:
        """Write dictionaries of the setting's sizes; those of a language model are one file."""
        objective = self.setting.objective
        names = ["dict.xx.txt", "dict.yy.txt"] if objective.translates else ["dict.txt"]
        added_by_task = 1 if objective.masks else 0  # fairseq's masked_lm adds the mask symbol itself
        for name, size in zip(names, self.setting.vocab, strict=False):  # `vocab` has two sizes in any case
            task = blank_task(size - added_by_task)
            task.source_dictionary.save(f"{self.folder.name}/{name}")

    def _flags(self) -> list[str]:
        """Return the flags of fairseq-train for the setting, without the fields of its model."""
        setting = self.setting
        objective = setting.objective
        languages = TRANSLATION if objective.translates else ()
        half = ""
        if setting.precision != "fp32":
            dtype = setting.precision[-4:]  # fp16 or bf16; fairseq wants its flag beside --memory-efficient-fp16 too
            half = f"--{dtype} --{setting.precision}"
        words = (
            f"--no-save --disable-validation --task {objective.task} --arch {setting.cfg.arch} --lr 1e-4 --cpu "
            f"--lr-scheduler fixed --max-tokens {setting.max_tokens} --optimizer {setting.optimizer} "
            f"--criterion {setting.criterion} {recomputation_flags(setting.checkpoint_every)} {half}"
        )
        return [self.folder.name, *languages, *words.split()]

    def _batch(self, seed: int) -> dict:
        """Draw a batch of sentences of the setting's length, as fairseq's datasets give it."""
        setting = self.setting
        generator = torch.Generator().manual_seed(seed)
        sentences = setting.max_tokens // setting.length

        def draw(vocabulary: int) -> torch.Tensor:
            return torch.randint(SPECIALS, vocabulary, (sentences, setting.length), generator=generator)

        net_input = {"src_tokens": draw(setting.vocab[0])}
        target = draw(setting.vocab[1])
        if setting.objective.translates:
            net_input["prev_output_tokens"] = draw(setting.vocab[1])
        if setting.objective.masks:  # only masked tokens have a target; here these are the first ones
            target.flatten()[setting.predicted_tokens :] = PAD
        net_input["src_lengths"] = torch.full((sentences,), setting.length)
        return {
            "id": torch.arange(sentences),
            "nsentences": sentences,
            "ntokens": target.numel(),
            "net_input": net_input,
            "target": target,
        }
