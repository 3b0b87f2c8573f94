"""Train with a subclass of fairseq's Trainer, and build one in this process for commands that look at a run.

DeepTrainer reads in the order of a run: build, load, batches, step, clip, log, validate, save. patches.py puts it where
fairseq-train looks its Trainer up.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from fairseq import models, optim, options, tasks, utils
from fairseq.data import iterators
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.optim import lr_scheduler
from fairseq.trainer import Trainer

from ..core import archs
from ..errors import UserError
from . import datasets, stuck
from .admin_profile import fill_profile
from .checkpoints import reading, vocabulary
from .distributed import launch, zero
from .divergence import FLOOR, GRADIENTS, LOSS, Diverged
from .graphs import settings as graph_settings
from .optimisers import half_precision, papers
from .probing import probes_of
from .run import Program, Run
from .task import with_mixin

logger = logging.getLogger(__name__)
FORCED = ("--distributed-world-size", "1")  # fairseq's parser takes the last of two


class DeepTrainer(Trainer):
    """Trainer of fairseq with every change that this package makes to a training step.

    run: folder, saves and resumes of the training; samples: the batches of the present update; iterator: the batches of
    the present epoch; limited: the modules whose gradients are clipped apart.
    """

    is_fsdp = False  # fairscale's, which zero.check_settings refuses
    samples: list = []  # replaced, never changed
    iterator: Any = None
    limited: list | None = None
    _wrapped_model: Any
    _wrapped_criterion: Any

    # build

    def __init__(self, cfg, task, model, criterion, quantizer=None, program: Program | None = None):
        """Take fairseq's arguments; program: fairseq-train, None for a trainer that another program makes."""
        launch.use_default_group()
        super().__init__(cfg, task, model, criterion, quantizer)
        self.run = Run(self, program)
        with_mixin(task)
        self.stuck = task.stuck = stuck.stuck_monitor(self.cfg, criterion)
        self.probes = task.probes = probes_of(model, self.cfg.model)
        self.use_graphs(graph_settings.parse(self._cuda_graphs) or 0)

    @property
    def model(self):
        """Model in its wrapper for several processes."""
        if self._wrapped_model is None:
            self._wrapped_model = self._over_processes(self._model)
        return self._wrapped_model

    @property
    def criterion(self):
        """Loss, wrapped too if it has parameters of its own."""
        if self._wrapped_criterion is None:
            trained = utils.has_parameters(self._criterion)
            self._wrapped_criterion = self._over_processes(self._criterion) if trained else self._criterion
        return self._wrapped_criterion

    def _over_processes(self, module: torch.nn.Module) -> Any:
        """Wrap a module by --ddp-backend, also on CPUs, without fairseq's heartbeat.

        The heartbeat kills the whole process group silently; a collective that waits too long raises an error instead.
        """
        place, group = self.cfg.distributed_training, self.data_parallel_process_group
        if not self.use_distributed_wrapper:
            return module
        if place.ddp_backend in ("c10d", "pytorch_ddp"):
            return launch.parallel(place, module, group, self.device)
        seconds, place.heartbeat_timeout = place.heartbeat_timeout, -1
        try:
            return models.DistributedFairseqModel(place, module, process_group=group, device=self.device)
        finally:
            place.heartbeat_timeout = seconds

    @property
    def _cuda_graphs(self) -> str | None:
        """The flag --cuda-graphs; None of a model that has none, which is another package's."""
        return getattr(self.cfg.model, "cuda_graphs", None)

    def use_graphs(self, wanted: int | str) -> None:
        """Compute the batches of training by CUDA graphs from the next one on, if the settings allow it."""
        self.graphs = self.task.graphs = graph_settings.graphed_step(self, wanted)

    def _build_optimizer(self):
        """Build the optimiser, in half precision one of half_precision.py, and shard its state under ZeRO.

        fairseq's own sharding needs fairscale.
        """
        cfg, common = self.cfg, self.cfg.common
        named = [*self.model.named_parameters(), *self.criterion.named_parameters()]
        params = [parameter for _, parameter in named if parameter.requires_grad]
        if cfg.optimization.debug_param_names and common.fp16_no_flatten_grads:
            self.param_names = [name for name, parameter in named if parameter.requires_grad]
        half_precision.warn_on_cpu(self)
        with half_precision.on_cpu(self):
            if common.fp16 or common.bf16 or common.amp:
                self._optimizer = half_precision.build(cfg, params)
            else:
                self._optimizer = optim.build_optimizer(cfg.optimizer, params)
            if cfg.optimization.use_bmuf:
                self._optimizer = optim.FairseqBMUF(cfg.bmuf, self._optimizer)
        if cfg.distributed_training.zero_sharding == "os" and self.data_parallel_world_size > 1:
            self._optimizer.shard(self.data_parallel_process_group)
        self._lr_scheduler = lr_scheduler.build_lr_scheduler(cfg.lr_scheduler, self._optimizer)
        self._lr_scheduler.step_update(0)

    # load

    def load_checkpoint(self, filename, reset_optimizer=False, reset_lr_scheduler=False, optimizer_overrides=None,
                        reset_meters=False):  # fmt: skip
        """Load a checkpoint, with all that save_checkpoint adds to fairseq's.

        Raises a UserError, before anything is loaded, for one of another vocabulary without --new-vocabulary.
        """
        with reading.explaining_unusable(filename):
            with vocabulary.carrying_over(self, filename, reset_optimizer):
                extra_state = super().load_checkpoint(
                    filename, reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters
                )
            if extra_state is None:
                return None
            if not reset_optimizer:
                self.use_graphs(graph_settings.kept(self._cuda_graphs, extra_state.get(graph_settings.KEY, 0)))
            self.run.restore(extra_state, reset_meters)
        return extra_state

    # batches

    def go_on_from(self, iterator) -> dict:
        """Move an epoch's batches to the place at which the loaded checkpoint was saved; return that place."""
        cfg = self.cfg.optimization
        of_epoch = min(self.run.place["epoch"], len(cfg.update_freq)) - 1
        place = datasets.place_now(self.run.place, iterator, cfg.update_freq[of_epoch], cfg.skip_remainder_batch)
        iterator.load_state_dict(place)
        return place

    def get_train_iterator(self, epoch, combine=True, load_dataset=True, data_selector=None, shard_batch_itr=True,
                           disable_iterator_cache=False):  # fmt: skip
        """Return the training's batches; after a resume they are the same as without the interruption.

        fairseq makes the batches once in a process, seeded by the epoch in which the process begins.
        """
        made_in, self.run.batches_made_in = self.run.batches_made_in, None
        if made_in is None or disable_iterator_cache or self.cfg.dataset.update_epoch_batch_itr:
            made_in = epoch
        if load_dataset and made_in != epoch:  # of the present epoch, not of made_in, which super() would load
            subset, load_dataset = self.cfg.dataset.train_subset, False
            self.task.load_dataset(subset, epoch=epoch, combine=combine, data_selector=data_selector, tpu=self.tpu)
        iterator = super().get_train_iterator(
            made_in, combine, load_dataset, data_selector, shard_batch_itr, disable_iterator_cache
        )
        if not hasattr(iterator, "made_in"):
            iterator.made_in, iterator.epoch = made_in, epoch
        model = self.get_model()
        if getattr(model, "profiled", False) and not self.run.resumed and self.get_num_updates() == 0:
            fill_profile(model, iterator)
            model.profiled = False
        if self.probes is not None and self.probes.iterator is None:
            self.probes.iterator = iterator
        if self.graphs is not None:
            self.graphs.plan(iterator)
        self.iterator = iterator
        return iterator

    # step

    def train_step(self, samples, raise_oom=False):
        """Make an update; raise Diverged if its loss is not finite.

        At an epoch's end a process that has fewer batches than the others computes dummy ones, which count for nothing.
        fairseq treats all of an update's batches in a process as dummies if the last one is, hence their order.
        """
        self.samples, before = samples, self.get_num_updates()
        with half_precision.on_cpu(self):
            logged = super().train_step(sorted(samples, key=bool), raise_oom)
        made = self.get_num_updates() > before and logged and logged.get("sample_size", 1)
        if made and not math.isfinite(float(logged.get("loss", 0.0))):
            raise Diverged(before + 1, LOSS, samples)
        return logged

    # clip

    def clip_grad_norm(self, clip_norm):
        """Show the gradients to the probes, then clip them, those of some modules apart; return their norm.

        Raises Diverged, on all processes, if the norm is not finite or the loss scale is at its floor. Under --fp16 an
        overflow raises fairseq's OverflowError, and under --amp its scaler skips the update.
        """
        papers.clip_apart(self)
        try:
            norm = self._clip_before_probes(clip_norm)
        except FloatingPointError as error:  # of fairseq's loss scalers
            raise Diverged(self.get_num_updates() + 1, FLOOR, self.samples) from error
        if not self.cfg.common.amp and not torch.isfinite(norm).all():
            raise Diverged(self.get_num_updates() + 1, GRADIENTS, self.samples)
        return norm

    def _clip_before_probes(self, clip_norm):
        if self.probes is None:
            return super().clip_grad_norm(clip_norm)
        made = False
        try:
            self.probes.see_gradients(half_precision.gradient_scale(self.optimizer))
            norm = super().clip_grad_norm(clip_norm)
            made = not self.cfg.common.amp or bool(torch.isfinite(norm))
            return norm
        finally:
            self.probes.end_update(made)

    # log

    def _aggregate_logging_outputs(self, logging_outputs, *sums, ignore=False):
        """Sum the logs of all processes, and whether a signal reached any, which spares a collective of its own."""
        sums = (*sums, float(self.run.signals.first > 0))
        logging_outputs, (*sums, signals) = super()._aggregate_logging_outputs(logging_outputs, *sums, ignore=ignore)
        self.run.signals.told = bool(signals > 0)
        return logging_outputs, sums

    # validate

    def valid_step(self, sample, raise_oom=False):
        """Validate a batch; raise Stopped if a signal came.

        raise_oom: marks the batch's second try, by this process alone, in which no collective may be called.
        """
        if not raise_oom:
            self.run.signals.raise_if_any(self.device)
            self.stuck.count(sample, self.task)
        return super().valid_step(sample, raise_oom)

    # save

    def consolidate_optimizer(self):
        """Gather the optimiser's state for a checkpoint, unless after an error the other processes do not take part."""
        if not zero.must_skip_collectives(self):
            super().consolidate_optimizer()

    def save_checkpoint(self, filename, extra_state):
        """Write a checkpoint; fairseq calls it for crash.pt too, after an error. Return its path, None if it failed."""
        if zero.must_skip_collectives(self) or not self.should_save_checkpoint_on_current_rank:
            return None
        return self.run.write(filename, extra_state)


def parse(flags: list[str]) -> argparse.Namespace:
    """Parse DATA and flags of fairseq-train for one process; flags that it refuses end the program, as there."""
    return options.parse_args_and_arch(options.get_training_parser(), [*flags, *FORCED])


def build_trainer(args: argparse.Namespace) -> DeepTrainer:
    """Build the Trainer with task, model and criterion from the run's seed; no batch is loaded.

    Raises a UserError without a batch size, and for settings that task or model refuse.
    """
    cfg = convert_namespace_to_omegaconf(args)
    if cfg.dataset.max_tokens is None and cfg.dataset.batch_size is None:
        raise UserError("--max-tokens: give the batch size of the run to come")
    metrics.reset()
    numpy.random.seed(cfg.common.seed)
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    return DeepTrainer(cfg, task, model, task.build_criterion(cfg.criterion))


def refuse_others(args: argparse.Namespace, who: str) -> None:
    """Raise a UserError, naming the flag, for another package's architecture or a training that starts from weights.

    who: the command that refuses, for the message ("the check").
    """
    if args.arch not in archs.PRESETS:
        known = " and ".join(archs.STACKS)
        raise UserError(f"--arch {args.arch}: {who} is for {known}, whose --method post_ln and pre_ln are the same")
    for name, default in (("restore_file", "checkpoint_last.pt"), ("finetune_from_model", None)):
        if getattr(args, name) != default:
            raise UserError(f"--{name.replace('_', '-')}: {who} looks at a training from its first update; drop it")


def batches(trainer: DeepTrainer) -> Iterator[list]:
    """Yield batches as the trainer takes them, those of an update together, epoch after epoch."""
    update_freq = trainer.cfg.optimization.update_freq
    for epoch in itertools.count(1):
        iterator = trainer.get_train_iterator(epoch)
        if epoch == 1:
            trainer.lr_step_begin_epoch(epoch)
            trainer.lr_step_update()
        shuffle = epoch > trainer.cfg.dataset.curriculum
        frequency = update_freq[min(epoch, len(update_freq)) - 1]
        trainer.begin_epoch(epoch)
        yield from iterators.GroupedIterator(iterator.next_epoch_itr(shuffle=shuffle), frequency)


def step(trainer: DeepTrainer, samples: list) -> dict | None:
    """Make one update, and return its log; None if it overflowed and only the loss scale changed."""
    fairseq = logging.getLogger("fairseq")  # prints a page of hooks' findings before numbers that are not finite
    level = fairseq.level
    fairseq.setLevel(logging.CRITICAL)
    try:
        with metrics.aggregate("train_inner"):
            return trainer.train_step(samples)
    finally:
        fairseq.setLevel(level)
