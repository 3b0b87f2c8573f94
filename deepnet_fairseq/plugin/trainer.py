"""DeepTrainer, a subclass of fairseq's Trainer, and functions that build and step one without fairseq-train.

The methods of DeepTrainer stand in the order of a run: build, load, batches, step, clip, log, validate, save.
patches.py puts DeepTrainer into fairseq-train in the place of Trainer. The functions serve commands such as `deepnet
check`, which make some updates in their own process.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import logging
import math
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

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
from . import command_line, datasets, stuck
from .admin_profile import set_omegas_by_profile
from .checkpoints import reading, vocabulary
from .distributed import launch, zero
from .divergence import FLOOR, GRADIENTS, LOSS, Diverged
from .graphs import data_parallel
from .graphs import settings as graph_settings
from .graphs.step import GraphedStep
from .optimisers import half_precision, papers
from .probing import probes_of
from .run import Program, Run
from .task import with_mixin

logger = logging.getLogger(__name__)
ONE_PROCESS = ("--distributed-world-size", "1")  # put last: of a flag given twice the parser takes the last


class DeepTrainer(Trainer):
    """Trainer of fairseq with every change that this package makes to a training step.

    run: the Run, which saves, resumes and ends the training (run.py); stuck: monitor of the validation losses for
    --stop-stuck; probes: those of --deepnet-probe, None without; graphs: computes batches by CUDA graphs, None without.
    The task holds the last three too: fairseq calls its train_step and post_validate without the trainer.
    """

    is_fsdp = False  # read by fairseq: whether fairscale shards the model, which zero.check_settings refuses
    samples: list = []  # batches of the present update, as fairseq collates them; replaced, never changed in place
    graphs: GraphedStep | None = None
    iterator: Any = None  # fairseq's EpochBatchIterator of the present epoch
    # modules whose gradients papers.clip_apart clips by themselves; None until it has looked for them
    limited: list | None = None
    _wrapped_model: Any  # fairseq's: the model and criterion for several processes, None until they are needed
    _wrapped_criterion: Any

    # build

    def __init__(self, cfg, task, model, criterion, quantizer=None, program: Program | None = None):
        """Build the trainer from fairseq's arguments; program: fairseq-train, None if another program makes it."""
        launch.use_default_group()  # before fairseq's Trainer makes a process group
        super().__init__(cfg, task, model, criterion, quantizer)
        self.run = Run(self, program)
        with_mixin(task)  # does nothing unless the task was made without fairseq's setup_task
        # the task reads these three where fairseq calls it without the trainer
        self.stuck = task.stuck = stuck.stuck_monitor(self.cfg, criterion)
        self.probes = task.probes = probes_of(model, self.cfg.model)
        wanted = graph_settings.parse_cuda_graphs(self._cuda_graphs) or 0  # without the flag: no graphs
        self.use_graphs(graph_settings.graphed_step(self, wanted))

    @property
    def model(self):
        """The model to train; if there are several processes, in a wrapper that is made at the first call."""
        if self._wrapped_model is None:
            self._wrapped_model = self._wrap_for_processes(self._model)
        return self._wrapped_model

    @property
    def criterion(self):
        """The loss module; one with parameters of its own goes through _wrap_for_processes, as the model does."""
        if self._wrapped_criterion is None:
            trained = utils.has_parameters(self._criterion)
            self._wrapped_criterion = self._wrap_for_processes(self._criterion) if trained else self._criterion
        return self._wrapped_criterion

    def _wrap_for_processes(self, module: torch.nn.Module) -> Any:
        """Wrap a module so that its gradients are averaged over the processes, also on CPUs.

        A training of one process, and one with --use-bmuf, gets the module itself. With graphs the wrapper of the model
        averages the gradients of both, model and loss. Without them --ddp-backend names the wrapper; fairseq's
        DistributedTimeoutWrapper is left out, which interrupts a process that begins no forward pass for
        --heartbeat-timeout seconds. In its place a collective that waits as long raises an error.
        """
        cfg = self.cfg.distributed_training
        group = self.data_parallel_process_group
        if not self.use_distributed_wrapper:
            return module
        if self.graphs is not None:
            module = module.to(self.device)  # fairseq leaves this move to its wrapper
            return data_parallel.wrap(module, self.graphs, group) if module is self._model else module
        if cfg.ddp_backend in ("c10d", "pytorch_ddp"):
            return launch.wrap_in_ddp(cfg, module, group, self.device)

        # another backend, as legacy_ddp: fairseq wraps the module
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

    def use_graphs(self, graphs: GraphedStep | None) -> None:
        """Compute the batches from the next one on by these CUDA graphs; None: without graphs."""
        if graphs is not self.graphs:
            # with graphs the wrapper averages gradients in another way: it is made anew where it is needed next
            self._wrapped_model = None
            self._wrapped_criterion = None
        self.graphs = graphs
        self.task.graphs = graphs

    def _prepare_graphs(self, graphs: GraphedStep, sample: Any) -> None:
        """Capture the graphs before the first update.

        If there is an obstacle to graphs, several processes go on with the wrapper of --ddp-backend. sample: the
        update's first batch, as fairseq collates it; empty for a process that has none.
        """
        self.model.train()
        self.criterion.train()
        self.zero_grad()
        on_device, _is_dummy = self._prepare_sample(sample)
        graphs.prepare(on_device, self._model, self._criterion, self.optimizer, self.get_num_updates())
        if graphs.obstacle is not None and graphs.processes is not None:
            self.zero_grad()  # frees the gradients' buffers before DDP makes its own
            self.use_graphs(None)

    def _build_optimizer(self):
        """Build the optimiser and the learning rate's schedule; fairseq calls this, and again when it resumes.

        This replaces fairseq's method. In half precision half_precision.build_optimizer makes the optimiser. Under
        --zero-sharding os the optimiser shards its state itself, since fairseq's sharding needs fairscale. Raises a
        UserError without --optimizer.
        """
        cfg = self.cfg
        if getattr(cfg.optimizer, "_name", None) is None:
            raise UserError("--optimizer", "has no default; give deepnet_adam, or one of fairseq's")
        common = self.cfg.common
        named = [*self.model.named_parameters(), *self.criterion.named_parameters()]
        params = [parameter for _, parameter in named if parameter.requires_grad]
        if cfg.optimization.debug_param_names and common.fp16_no_flatten_grads:
            # after an overflow fairseq logs the names of the parameters whose gradients are not finite
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
        self._lr_scheduler.step_update(0)  # sets the learning rate of the first update

    # load

    def load_checkpoint(self, filename, reset_optimizer=False, reset_lr_scheduler=False, optimizer_overrides=None,
                        reset_meters=False):  # fmt: skip
        """Load a checkpoint, and restore what this package adds to its extra_state.

        The arguments are fairseq's. Return the extra_state, None if the file does not exist. Raises a UserError, before
        anything is loaded, for a checkpoint of another vocabulary without --new-vocabulary.
        """
        with reading.explaining_unusable(filename):
            with vocabulary.loading_by_symbol(self, filename, reset_optimizer):
                extra_state = super().load_checkpoint(
                    filename, reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters
                )
            if extra_state is None:
                return None
            if not reset_optimizer:  # the same training goes on, by graphs if it began by graphs
                began_with = extra_state.get(graph_settings.KEY, 0)
                wanted = graph_settings.after_resume(self._cuda_graphs, began_with)
                self.use_graphs(graph_settings.graphed_step(self, wanted))
            self.run.restore(extra_state, reset_meters)
        return extra_state

    # batches

    def go_to_saved_place(self, iterator) -> dict:
        """Move an iterator to the batch at which the loaded checkpoint was saved; return the iterator's new state.

        iterator: fairseq's EpochBatchIterator over the checkpoint's epoch, made by the present flags. If these make
        other batches than before, datasets.converted_place chooses the batch.
        """
        cfg = self.cfg.optimization
        saved_place = self.run.saved_place
        update_freq = _batches_an_update(cfg, saved_place["epoch"])
        place = datasets.converted_place(saved_place, iterator, update_freq, cfg.skip_remainder_batch)
        iterator.load_state_dict(place)
        return place

    def get_train_iterator(self, epoch, combine=True, load_dataset=True, data_selector=None, shard_batch_itr=True,
                           disable_iterator_cache=False):  # fmt: skip
        """Return fairseq's iterator over an epoch's batches, the same batches after a resume as without interruption.

        The arguments are fairseq's. fairseq groups sentences into batches at the first epoch of a process, with random
        numbers seeded by the number of that epoch, and caches the iterator. A resumed training therefore makes its
        batches by the number of the epoch in which the original training made them (Run.batches_made_in).
        The iterator is also given to what needs batches before the first update: Admin's profile, probes, CUDA graphs.
        """
        made_in = self.run.batches_made_in
        self.run.batches_made_in = None  # used once: later epochs find the cache
        if made_in is None or disable_iterator_cache or self.cfg.dataset.update_epoch_batch_itr:
            made_in = epoch  # nothing was saved, or fairseq makes the batches of each epoch anew
        if load_dataset and made_in != epoch:  # load the data of `epoch` here: super() would load those of `made_in`
            subset = self.cfg.dataset.train_subset
            load_dataset = False
            self.task.load_dataset(subset, epoch=epoch, combine=combine, data_selector=data_selector, tpu=self.tpu)
        iterator = super().get_train_iterator(
            made_in, combine, load_dataset, data_selector, shard_batch_itr, disable_iterator_cache
        )
        if not hasattr(iterator, "made_in"):  # new, not from the cache
            iterator.made_in = made_in  # kept on the iterator for the checkpoints (Run._process_state)
            iterator.epoch = epoch

        model = self.get_model()
        is_before_training = not self.run.resumed and self.get_num_updates() == 0
        if getattr(model, "profiled", False) and is_before_training:  # another package's model lacks the attribute
            set_omegas_by_profile(model, iterator)
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

        samples: the update's batches in this process; raise_oom: fairseq's. Return what fairseq logs of the update,
        None if it was not made.

        At an epoch's end a process that has fewer batches than the others gets empty ones. fairseq computes a dummy
        batch for each, whose loss does not count. It takes all batches of an update for dummies if the last one is, so
        the empty ones are put first.
        """
        self.samples = samples
        before = self.get_num_updates()
        with half_precision.without_cuda_calls(self):
            empty_first = sorted(samples, key=bool)
            if self.graphs is not None and not self.graphs.prepared:
                self._prepare_graphs(self.graphs, empty_first[0])
            logged = super().train_step(empty_first, raise_oom)
        # without targets in any process (a sample size of 0) the mean loss is 0 / 0, which is no divergence; another
        # package's criterion need not log its sample size or its loss
        made = self.get_num_updates() > before and logged and logged.get("sample_size", 1)
        if made and not math.isfinite(float(logged.get("loss", 0.0))):
            raise Diverged(before + 1, LOSS, samples)
        return logged

    # clip

    def clip_grad_norm(self, clip_norm):
        """Clip the gradients to the norm clip_norm (0: not at all), and return their norm before that.

        The modules of some methods are clipped by a norm of their own first (papers.clip_apart); the probes see the
        gradients after that. Raises Diverged, on all processes, if the norm is not finite. With a loss scale that is an
        overflow, which skips the update (under --fp16 fairseq raises OverflowError for that, under --amp the scaler
        does it), and Diverged is raised once the scale cannot be lowered any more.
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
        """Show the gradients to the probes, then clip them as fairseq does; return their norm before that.

        The probes write the update's values, unless the loss scaler of half precision skips the update.
        """
        if self.probes is None:
            return super().clip_grad_norm(clip_norm)
        is_made = False  # under --fp16 an update is skipped by an error, here
        try:
            self.probes.see_gradients(half_precision.gradient_scale(self.optimizer))
            norm = super().clip_grad_norm(clip_norm)
            # under --amp an update is skipped if the norm is not finite; without --amp such a norm is a divergence,
            # whose values are written
            is_made = not self.cfg.common.amp or bool(torch.isfinite(norm))
            return norm
        finally:
            self.probes.end_update(is_made)

    # log

    def _aggregate_logging_outputs(self, logging_outputs, *sums, ignore=False):
        """Sum the logs of all processes, and with them the number of processes that have got a signal.

        sums: further numbers to sum over the processes; the other arguments are fairseq's. Return the logs and the
        sums. The number of signals is summed here because an update sums its logs anyway, in one collective.
        """
        signals = self.run.signals
        got_signal = float(signals.first_signal > 0)
        to_sum = [*sums, got_signal]
        if self.graphs is not None and self.task.logging_outputs_can_be_summed(self.get_criterion()):
            # fairseq sums tensors in one collective and numbers in another. A value may be a tensor in the log of a
            # graph and a number in that of plain passes, on another process: all become tensors, in one order.
            logging_outputs = [{key: self._as_tensor(log[key]) for key in sorted(log)} for log in logging_outputs]
            to_sum = [self._as_tensor(value) for value in to_sum]
        logging_outputs, (*sums, signalled) = super()._aggregate_logging_outputs(
            logging_outputs, *to_sum, ignore=ignore
        )
        signals.any_process_signalled = bool(signalled > 0)
        return logging_outputs, sums

    def _as_tensor(self, value: Any) -> torch.Tensor:
        """Return a number or a tensor () as a tensor () on the device; nothing waits for the device."""
        if torch.is_tensor(value):
            return value.to(self.device, torch.double, non_blocking=True)
        return torch.full((), float(value), dtype=torch.double, device=self.device)

    # validate

    def valid_step(self, sample, raise_oom=False):
        """Validate a batch and return what fairseq logs of it; raise Stopped if any process has got a signal.

        raise_oom: True for the second try of a batch that was too large for the memory. Only this process makes that
        try, so no collective may be called in it.
        """
        if not raise_oom:
            self.run.signals.raise_if_signalled(self.device)
            self.stuck.count(sample, self.task)
        return super().valid_step(sample, raise_oom)

    # save

    def consolidate_optimizer(self):
        """Gather the optimiser's sharded state for a checkpoint; do nothing if other processes would not take part."""
        if not zero.must_skip_collectives(self):
            super().consolidate_optimizer()

    def save_checkpoint(self, filename, extra_state):
        """Write a checkpoint, and return its path; None if it was not written, or not by this process.

        The arguments are fairseq's. fairseq also calls it to write crash.pt, after an error in this process alone.
        """
        if zero.must_skip_collectives(self) or not self.should_save_checkpoint_on_current_rank:
            return None
        return self.run.write(filename, extra_state)


def parse_training_flags(flags: list[str]) -> argparse.Namespace:
    """Parse the words of fairseq-train's command line (DATA and flags), with the number of processes set to one.

    Flags that fairseq-train refuses end the program with its message.
    """
    return options.parse_args_and_arch(options.get_training_parser(), [*flags, *ONE_PROCESS])


def check_training_flags(flags: list[str], files_exist: bool = True) -> None:
    """Raise a UserError for words (DATA and flags) with which fairseq-train ends before it begins.

    Methods of the user's must be imported already. files_exist: False if DATA, or another file that a flag names, is
    still to be made; then the flags are parsed, and no file is looked for.
    """
    words = sys.argv
    sys.argv = words[:1]  # fairseq would import a --user-dir among the words of this process's own command line
    try:
        parser = options.get_training_parser()
        parser.exit = _raise_user_error  # a mistake would end this program by parser.exit
        fairseqs_parse = inspect.unwrap(options.parse_args_and_arch)  # registering this package has wrapped it
        command_line.parse_or_explain(fairseqs_parse, parser, [*flags, *ONE_PROCESS], files_exist=files_exist)
    finally:
        sys.argv = words


def _raise_user_error(status: int = 0, message: str | None = None) -> NoReturn:
    """Raise the message "PROGRAM: error: MESSAGE" as a UserError; takes the place of ArgumentParser.exit."""
    _program, _, mistake = (message or "").strip().partition(": error: ")
    raise UserError(mistake.removeprefix("argument "))


def _batches_an_update(optimization, epoch: int) -> int:
    """Return how many batches a process takes for one update in `epoch`, by --update-freq.

    optimization: the config's section. The flag has a number for each of the first epochs; the last one holds for all
    later epochs.
    """
    update_freq = optimization.update_freq
    return update_freq[min(epoch, len(update_freq)) - 1]


def build_trainer(args: argparse.Namespace) -> DeepTrainer:
    """Build a trainer with its task, model and criterion, with weights drawn from --seed; load no batch.

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


def refuse_other_trainings(args: argparse.Namespace, who: str) -> None:
    """Raise a UserError, naming the flag, for another package's architecture or a flag that names a checkpoint.

    Such a flag is --restore-file or --finetune-from-model. args: of parse_training_flags; who: the command that
    refuses, for the message ("the check"). To a user who has named fairseq's own architecture the message says which
    methods of this package compute the same.
    """
    if args.arch not in archs.PRESETS:
        known = " and ".join(archs.STACKS)
        raise UserError(f"--arch {args.arch}", f"{who} is for {known}, whose --method post_ln and pre_ln are the same")
    for name, default in (("restore_file", "checkpoint_last.pt"), ("finetune_from_model", None)):
        if getattr(args, name) != default:
            raise UserError(f"--{name.replace('_', '-')}", f"{who} looks at a training from its first update; drop it")


def batches_by_update(trainer: DeepTrainer) -> Iterator[list]:
    """Yield the list of batches of each update, as trainer.train_step takes it, epoch after epoch without an end.

    Epochs begin as in fairseq-train, which sets the learning rate of the first update before epoch 1.
    """
    for epoch in itertools.count(1):
        iterator = trainer.get_train_iterator(epoch)
        if epoch == 1:
            trainer.lr_step_begin_epoch(epoch)
            trainer.lr_step_update()
        shuffle = epoch > trainer.cfg.dataset.curriculum
        frequency = _batches_an_update(trainer.cfg.optimization, epoch)
        trainer.begin_epoch(epoch)
        yield from iterators.GroupedIterator(iterator.next_epoch_itr(shuffle=shuffle), frequency)


def make_update(trainer: DeepTrainer, samples: list) -> dict | None:
    """Make one update, and return what fairseq logs of it; None if it was not made, as after an overflow.

    samples: the update's batches, of batches_by_update. fairseq's logger is silent meanwhile: it would print a page
    about numbers that are not finite.
    """
    fairseq_logger = logging.getLogger("fairseq")
    level = fairseq_logger.level
    fairseq_logger.setLevel(logging.CRITICAL)
    try:
        with metrics.aggregate("train_inner"):  # where fairseq-train too collects an update's meters
            return trainer.train_step(samples)
    finally:
        fairseq_logger.setLevel(level)
