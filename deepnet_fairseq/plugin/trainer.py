"""DeepTrainer, a subclass of fairseq's Trainer, and functions that build and step one without fairseq-train.

The methods of DeepTrainer stand in the order of a run: build, load, batches, step, clip, log, validate, save.
patches.py makes fairseq-train take it for its Trainer. The functions serve commands such as `deepnet check`, which make
some updates in their own process.
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
ONE_PROCESS = ("--distributed-world-size", "1")  # put last: of a flag given twice the parser takes the last


class DeepTrainer(Trainer):
    """Trainer of fairseq with every change that this package makes to a training step.

    run: everything of the training but its updates (run.py); stuck: monitor of the validation losses for --stop-stuck;
    probes: those of --deepnet-probe, None without; graphs: the training step by CUDA graphs, None without. The task
    holds the last three too, because fairseq calls it in the middle of a step.
    """

    is_fsdp = False  # fairscale's sharding, which zero.check_settings refuses
    samples: list = []  # batches of the present update, as fairseq collates them; replaced, never changed in place
    iterator: Any = None  # fairseq's EpochBatchIterator of the present epoch
    # modules whose gradients papers.clip_apart clips by themselves; None until it has looked for them
    limited: list | None = None
    _wrapped_model: Any  # fairseq's: the model and criterion for several processes, None until they are needed
    _wrapped_criterion: Any

    # build

    def __init__(self, cfg, task, model, criterion, quantizer=None, program: Program | None = None):
        """Build the trainer from fairseq's arguments; program: fairseq-train, None if another program makes it."""
        launch.use_default_group()
        super().__init__(cfg, task, model, criterion, quantizer)
        self.run = Run(self, program)
        with_mixin(task)
        self.stuck = task.stuck = stuck.stuck_monitor(self.cfg, criterion)
        self.probes = task.probes = probes_of(model, self.cfg.model)
        self.use_graphs(graph_settings.parse_cuda_graphs(self._cuda_graphs) or 0)

    @property
    def model(self):
        """The model to train, in its wrapper for several processes if there are several."""
        if self._wrapped_model is None:
            self._wrapped_model = self._over_processes(self._model)
        return self._wrapped_model

    @property
    def criterion(self):
        """The loss module, wrapped too if it has parameters of its own."""
        if self._wrapped_criterion is None:
            trained = utils.has_parameters(self._criterion)
            self._wrapped_criterion = self._over_processes(self._criterion) if trained else self._criterion
        return self._wrapped_criterion

    def _over_processes(self, module: torch.nn.Module) -> Any:
        """Wrap a module for several processes by --ddp-backend, also on CPUs; return it as it is for one process.

        fairseq's heartbeat is left out. It kills the whole process group silently where a collective waits too long;
        without it the collective raises an error.
        """
        cfg = self.cfg.distributed_training
        group = self.data_parallel_process_group
        if not self.use_distributed_wrapper:
            return module
        if cfg.ddp_backend in ("c10d", "pytorch_ddp"):
            return launch.wrap_in_ddp(cfg, module, group, self.device)

        seconds = cfg.heartbeat_timeout
        cfg.heartbeat_timeout = -1  # no heartbeat
        try:
            return models.DistributedFairseqModel(cfg, module, process_group=group, device=self.device)
        finally:
            cfg.heartbeat_timeout = seconds

    @property
    def _cuda_graphs(self) -> str | None:
        """The flag --cuda-graphs; None if it is not given, or if the model is another package's."""
        return getattr(self.cfg.model, "cuda_graphs", None)

    def use_graphs(self, wanted: int | str) -> None:
        """Compute the training's batches by CUDA graphs from the next one on, if the settings allow it.

        wanted: number of padded shapes, each of which gets a graph; 0 for no graphs; "auto" to compare both.
        """
        self.graphs = self.task.graphs = graph_settings.graphed_step(self, wanted)

    def _build_optimizer(self):
        """Build the optimiser and the learning rate's schedule; fairseq calls this, and again when it resumes.

        In half precision the optimiser is one of half_precision.py. Under --zero-sharding os it shards its state
        itself, since fairseq's sharding needs fairscale.
        """
        cfg = self.cfg
        common = self.cfg.common
        named = [*self.model.named_parameters(), *self.criterion.named_parameters()]
        params = [parameter for _, parameter in named if parameter.requires_grad]
        if cfg.optimization.debug_param_names and common.fp16_no_flatten_grads:
            self.param_names = [name for name, parameter in named if parameter.requires_grad]
        half_precision.warn_on_cpu(self)
        with half_precision.without_cuda_calls(self):
            if common.fp16 or common.bf16 or common.amp:
                self._optimizer = half_precision.build_optimizer(cfg, params)
            else:
                self._optimizer = optim.build_optimizer(cfg.optimizer, params)
            if cfg.optimization.use_bmuf:
                self._optimizer = optim.FairseqBMUF(cfg.bmuf, self._optimizer)
        if cfg.distributed_training.zero_sharding == "os" and self.data_parallel_world_size > 1:
            self._optimizer.shard_state(self.data_parallel_process_group)
        self._lr_scheduler = lr_scheduler.build_lr_scheduler(cfg.lr_scheduler, self._optimizer)
        self._lr_scheduler.step_update(0)

    # load

    def load_checkpoint(self, filename, reset_optimizer=False, reset_lr_scheduler=False, optimizer_overrides=None,
                        reset_meters=False):  # fmt: skip
        """Load a checkpoint, and what this package adds to its extra_state; return that, None without such a file.

        The arguments are fairseq's. Raises a UserError, before anything is loaded, for a checkpoint of another
        vocabulary without --new-vocabulary.
        """
        with reading.explaining_unusable(filename):
            with vocabulary.loading_by_symbol(self, filename, reset_optimizer):
                extra_state = super().load_checkpoint(
                    filename, reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters
                )
            if extra_state is None:
                return None
            if not reset_optimizer:
                self.use_graphs(graph_settings.after_resume(self._cuda_graphs, extra_state.get(graph_settings.KEY, 0)))
            self.run.restore(extra_state, reset_meters)
        return extra_state

    # batches

    def go_on_from(self, iterator) -> dict:
        """Move an epoch's batches to the place at which the loaded checkpoint was saved; return that place.

        iterator: fairseq's EpochBatchIterator, made by the present flags; the place is its state_dict.
        """
        cfg = self.cfg.optimization
        saved_place = self.run.saved_place
        update_freq = cfg.update_freq[min(saved_place["epoch"], len(cfg.update_freq)) - 1]  # the last holds on
        place = datasets.converted_place(saved_place, iterator, update_freq, cfg.skip_remainder_batch)
        iterator.load_state_dict(place)
        return place

    def get_train_iterator(self, epoch, combine=True, load_dataset=True, data_selector=None, shard_batch_itr=True,
                           disable_iterator_cache=False):  # fmt: skip
        """Return an epoch's batches; after a resume they are the same as without the interruption.

        The arguments are fairseq's. fairseq groups sentences into batches once in a process, with random numbers that
        the process's first epoch seeds, and caches them; so a resumed training makes them for its original first epoch.
        Admin's profile, the probes and the CUDA graphs get from here the batches that they need before an update.
        """
        made_in = self.run.batches_made_in
        self.run.batches_made_in = None  # used once: later epochs find the cache
        if made_in is None or disable_iterator_cache or self.cfg.dataset.update_epoch_batch_itr:
            made_in = epoch
        if load_dataset and made_in != epoch:  # load the data of `epoch` here: super() would load those of `made_in`
            subset = self.cfg.dataset.train_subset
            load_dataset = False
            self.task.load_dataset(subset, epoch=epoch, combine=combine, data_selector=data_selector, tpu=self.tpu)
        iterator = super().get_train_iterator(
            made_in, combine, load_dataset, data_selector, shard_batch_itr, disable_iterator_cache
        )
        if not hasattr(iterator, "made_in"):  # new, not from the cache
            iterator.made_in = made_in
            iterator.epoch = epoch

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

        samples: the update's batches in this process. At an epoch's end a process that has fewer batches than the
        others gets empty ones, for which it computes dummy batches that count for nothing. fairseq takes all batches of
        an update for dummies if the last one is, so the empty ones are put first. Return what fairseq logs of the
        update, None if it was not made.
        """
        self.samples = samples
        before = self.get_num_updates()
        with half_precision.without_cuda_calls(self):
            logged = super().train_step(sorted(samples, key=bool), raise_oom)  # False, of an empty batch, sorts first
        made = self.get_num_updates() > before and logged and logged.get("sample_size", 1)
        if made and not math.isfinite(float(logged.get("loss", 0.0))):
            raise Diverged(before + 1, LOSS, samples)
        return logged

    # clip

    def clip_grad_norm(self, clip_norm):
        """Clip the gradients to the norm clip_norm (0: not at all), and return their norm before that.

        Some methods' modules are clipped by themselves first (papers.clip_apart); the probes see the gradients after
        that. Raises Diverged, on all processes, if the norm is not finite or the loss scale is at its floor. Under
        --fp16 an overflow raises fairseq's OverflowError, and under --amp its scaler skips the update.
        """
        papers.clip_apart(self)
        try:
            norm = self._clip_with_probes(clip_norm)
        except FloatingPointError as error:  # of fairseq's loss scaler, which cannot be halved any more
            raise Diverged(self.get_num_updates() + 1, FLOOR, self.samples) from error
        if not self.cfg.common.amp and not torch.isfinite(norm).all():
            raise Diverged(self.get_num_updates() + 1, GRADIENTS, self.samples)
        return norm

    def _clip_with_probes(self, clip_norm):
        """Show the gradients to the probes, then clip them as fairseq does; return their norm before that."""
        if self.probes is None:
            return super().clip_grad_norm(clip_norm)
        recorded = False
        try:
            self.probes.see_gradients(half_precision.gradient_scale(self.optimizer))
            norm = super().clip_grad_norm(clip_norm)
            # no row for an attempt that a loss scaler skips: --fp16 raises, --amp returns a norm that is not finite;
            # the row of a divergence is kept
            recorded = not self.cfg.common.amp or bool(torch.isfinite(norm))
            return norm
        finally:
            self.probes.end_update(recorded)

    # log

    def _aggregate_logging_outputs(self, logging_outputs, *sums, ignore=False):
        """Sum the logs of all processes, and with them the number of processes that have got a signal.

        The arguments and the result are fairseq's. The sum spares the signals a collective of their own.
        """
        signals = self.run.signals
        sums = (*sums, float(signals.first_signal > 0))
        logging_outputs, (*sums, signalled) = super()._aggregate_logging_outputs(logging_outputs, *sums, ignore=ignore)
        signals.any_process_signalled = bool(signalled > 0)
        return logging_outputs, sums

    # validate

    def valid_step(self, sample, raise_oom=False):
        """Validate a batch; raise Stopped if a signal came.

        raise_oom: fairseq sets it for the second try of a batch that was too large for the memory. Only this process
        makes that try, so no collective may be called in it.
        """
        if not raise_oom:
            self.run.signals.raise_if_signalled(self.device)
            self.stuck.count(sample, self.task)
        return super().valid_step(sample, raise_oom)

    # save

    def consolidate_optimizer(self):
        """Gather the optimiser's state for a checkpoint, unless an error keeps the other processes from taking part."""
        if not zero.must_skip_collectives(self):
            super().consolidate_optimizer()

    def save_checkpoint(self, filename, extra_state):
        """Write a checkpoint, and return its path; None if it was not written, or not by this process.

        fairseq calls it for crash.pt too, after an error in this process alone.
        """
        if zero.must_skip_collectives(self) or not self.should_save_checkpoint_on_current_rank:
            return None
        return self.run.write(filename, extra_state)


def parse_training_flags(flags: list[str]) -> argparse.Namespace:
    """Parse the command line of fairseq-train (DATA and flags), but for one process.

    Flags that fairseq-train refuses end the program with its message.
    """
    return options.parse_args_and_arch(options.get_training_parser(), [*flags, *ONE_PROCESS])


def build_trainer(args: argparse.Namespace) -> DeepTrainer:
    """Build a trainer with its task, model and criterion from the seed of the flags; no batch is loaded.

    args: of parse_training_flags. Raises a UserError without a batch size, and for settings that task or model refuse.
    """
    cfg = convert_namespace_to_omegaconf(args)
    if cfg.dataset.max_tokens is None and cfg.dataset.batch_size is None:
        raise UserError("--max-tokens", "give the batch size of the run to come")
    metrics.reset()
    numpy.random.seed(cfg.common.seed)
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    return DeepTrainer(cfg, task, model, task.build_criterion(cfg.criterion))


def refuse_others(args: argparse.Namespace, who: str) -> None:
    """Raise a UserError, naming the flag, for another package's architecture or a training that loads a checkpoint.

    args: of parse_training_flags; who: the command that refuses, for the message ("the check").
    """
    if args.arch not in archs.PRESETS:
        known = " and ".join(archs.STACKS)
        raise UserError(f"--arch {args.arch}", f"{who} is for {known}, whose --method post_ln and pre_ln are the same")
    for name, default in (("restore_file", "checkpoint_last.pt"), ("finetune_from_model", None)):
        if getattr(args, name) != default:
            raise UserError(f"--{name.replace('_', '-')}", f"{who} looks at a training from its first update; drop it")


def batches_by_update(trainer: DeepTrainer) -> Iterator[list]:
    """Yield the list of batches of each update, as trainer.train_step takes it, epoch after epoch without an end.

    The learning rate is set before the first one, as fairseq-train does.
    """
    update_freq = trainer.cfg.optimization.update_freq
    for epoch in itertools.count(1):
        iterator = trainer.get_train_iterator(epoch)
        if epoch == 1:
            trainer.lr_step_begin_epoch(epoch)
            trainer.lr_step_update()
        shuffle = epoch > trainer.cfg.dataset.curriculum
        frequency = update_freq[min(epoch, len(update_freq)) - 1]  # the last holds on
        trainer.begin_epoch(epoch)
        yield from iterators.GroupedIterator(iterator.next_epoch_itr(shuffle=shuffle), frequency)


def make_update(trainer: DeepTrainer, samples: list) -> dict | None:
    """Make one update, and return what fairseq logs of it; None if it overflowed and only the loss scale changed.

    samples: the update's batches, of batches_by_update.
    """
    fairseq_logger = logging.getLogger("fairseq")  # would print a page about each number that is not finite
    level = fairseq_logger.level
    fairseq_logger.setLevel(logging.CRITICAL)
    try:
        with metrics.aggregate("train_inner"):
            return trainer.train_step(samples)
    finally:
        fairseq_logger.setLevel(level)
