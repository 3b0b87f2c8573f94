"""Class Run: everything of a training except its updates: the lock on its folder, resuming, saving, how it ends.

The functions at the end of the file are called in place of fairseq's functions of the same names (patches.py). Each
gets fairseq's own function as `original` and hands it to the Run, which calls it.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from fairseq.logging import metrics

from ..errors import UserError
from ..threads import torch_threads, width_of
from . import datasets, divergence, stuck
from .best_losses import BestLosses
from .checkpoints import atomic, epoch_weights, exact_resume, reading, saving
from .checkpoints.lock import FolderLock
from .distributed import agreement
from .distributed.launch import processes_here
from .graphs import settings as graph_settings
from .opening import opening_line
from .signals import Signals, Stopped

log = logging.getLogger(__name__)


class Program:
    """The fairseq-train that this process runs.

    namespace: globals of its `main`, in which main looks up the functions that it calls; run: the Run of the trainer
    that main has made last, None before that and after `end`.
    """

    def __init__(self, namespace: dict[str, Any]):
        self.namespace = namespace
        self.run: Run | None = None

    def end(self) -> None:
        """Free the run's folder and signal handlers, if there is a run; called when main has ended in any way."""
        if self.run is not None:
            self.run.stop()
            self.run = None


class Run:
    """One training, from the lock on its folder to its last save.

    trainer: the DeepTrainer that holds this run; program: fairseq-train, None if another program made the trainer. Two
    runs in one process share nothing but fairseq's averages for the log.

    A checkpoint that it writes holds:

    - cfg: the whole config; args: None, in the place of the arguments that old releases of fairseq saved;
    - model: the weights, in float32 also where training has them in half precision, tied ones once;
    - criterion: weights of the loss, for one that has any;
    - optimizer_history: the number of updates, the schedule's state, and the classes of criterion and optimiser;
    - last_optimizer_state: the optimiser's moments; in half precision float32 weights and the loss scale's counts too
      (optimisers/float32_weights.py);
    - task_state: what the task keeps, with the digests of its vocabularies (vocabulary.py);
    - extra_state, which holds
        - train_iterator: epoch and batches done in it, with the number of processes and of the epoch's batches;
        - val_loss, best: the loss of the validation before this save, None without one, and the best validation loss;
        - metrics, previous_training_time: averages and seconds; ema and ema_fp32_params under --store-ema;
        - deepnet_training: what `_process_state` returns;
        - deepnet_stuck: since when validations are no better than guessing (stuck.py), under --stop-stuck;
        - deepnet_cuda_graphs: the number of shapes of --cuda-graphs, or "auto"; 0 without graphs.
    """

    def __init__(self, trainer, program: Program | None = None):
        self.trainer = trainer
        self.program = program
        self.lock = FolderLock()
        self.signals = Signals()
        self.best = BestLosses({} if program is None else program.namespace)
        self.resumed = False  # whether a checkpoint was loaded
        self.saved_place: dict[str, Any] = {}  # state of fairseq's iterator over an epoch, in the loaded checkpoint
        # epoch whose random numbers grouped the sentences of the loaded checkpoint's training into batches; None: the
        # first epoch of this process groups them
        self.batches_made_in: int | None = None
        # (validation losses, True), which `train` returns at once, if the loaded checkpoint's training was over
        self.result_if_over: tuple[list, bool] | None = None

        self._save_error: atomic.SaveError | None = None  # of the latest save, None if that succeeded
        # path of checkpoint_last if it is damaged or missing, so that another checkpoint was loaded
        self._damaged_last: Path | None = None
        # the epoch's averages by name from before the resume; {} except while _finish_epoch validates and saves
        self._averages: dict[str, float] = {}
        # end_of_epoch of the validate_and_save that a signal stopped; None except while _save_and_exit saves
        self._unfinished_end_of_epoch: bool | None = None
        # of the save that is under way: the loss of the validation before it, None without one; a second path for the
        # checkpoint, and a file for its weights alone
        self._val_loss: float | None = None
        self._second_path: str | None = None
        self._weights_file: epoch_weights.WeightsFile | None = None
        if program is not None:
            program.run = self

    # start

    def start(self) -> None:
        """Set the number of threads on a CPU, log a line about the training, lock its folder, remove unfinished files.

        The folder is that of --save-dir; with --no-save it is left alone. Raises a UserError, before a file is written,
        for settings by which no save succeeds, or if another training has locked the folder.
        """
        cfg = self.trainer.cfg
        if self.trainer.device.type == "cpu":
            torch_threads.use(width_of(cfg.model), processes=processes_here(cfg))
        # the log shows the logger's name, and users know this one
        logging.getLogger("deepnet_fairseq.training").info(opening_line(self.trainer))

        saving.check_settings(cfg.checkpoint)
        if cfg.checkpoint.no_save:
            return
        folder = Path(cfg.checkpoint.save_dir)
        self.lock.take(folder)
        if agreement.is_first():
            atomic.remove_unfinished(folder)  # files that a killed training had only begun to write

    # resume

    def resume(self, fairseq_load, cfg, **kwargs):
        """Start the run, load its checkpoint, if there is one, and finish what was under way when it was saved.

        The checkpoint is the one that the flags name, or else the newest undamaged one of the folder. `_finish_epoch`
        says what may be left to do.

        fairseq_load: fairseq's load_checkpoint(cfg, trainer, **kwargs); cfg: the config's section for checkpoints.
        Return what fairseq_load returns: the checkpoint's extra_state (None without a checkpoint) and fairseq's
        iterator over the epoch's batches.
        """
        try:
            self.start()
            with self.best.in_fairseq():
                return self._load(fairseq_load, cfg, kwargs)
        except BaseException:
            self.stop()
            raise

    def _load(self, fairseq_load, cfg, kwargs: dict):
        """Load a checkpoint and finish what was under way; the arguments and the result are those of `resume`."""
        cfg = self._section_for_newest_undamaged(cfg)
        last = Path(cfg.save_dir) / f"{atomic.LAST}{self.trainer.checkpoint_suffix}.pt"
        # fairseq loads checkpoint_last, if it is there, else the checkpoint that --continue-once names, else the model
        # that --finetune-from-model names
        finetunes = cfg.finetune_from_model is not None and cfg.continue_once is None and not last.exists()
        extra_state, batches = fairseq_load(cfg, self.trainer, **kwargs)
        if extra_state is None:
            # a --restore-file of the command line was checked there; one of a YAML file is checked only here
            if cfg.restore_file != reading.DEFAULT:
                missing = reading.with_suffix(cfg.restore_file, self.trainer.checkpoint_suffix)
                raise UserError(f"--restore-file {cfg.restore_file}", f"there is no {missing}")
            return None, batches

        if finetunes or cfg.reset_dataloader:  # training starts at the first batch of epoch 1
            extra_state["train_iterator"] = self.saved_place
        else:
            extra_state["train_iterator"] = self.trainer.go_to_saved_place(batches)
            # one of these flags drops what the epoch would be finished by: the averages, or the number of updates
            if not (cfg.reset_meters or cfg.reset_optimizer):
                self.signals.watch()  # _finish_epoch may validate, which a signal can stop
                self._finish_epoch(extra_state)
        if exact_resume.between_epochs(extra_state) and metrics.get_meters("train"):
            metrics.reset_meters("train")  # as fairseq does after each epoch
        return extra_state, batches

    def _section_for_newest_undamaged(self, cfg):
        """Return a section for checkpoints with which fairseq loads the newest undamaged checkpoint of the folder.

        cfg: the config's section for checkpoints. The section itself is returned if checkpoint_last is undamaged, if
        the folder has no checkpoint, or if --restore-file names one; otherwise a copy whose restore_file is another
        checkpoint.
        """
        if cfg.restore_file != reading.DEFAULT:
            return cfg
        folder = Path(cfg.save_dir)
        suffix = self.trainer.checkpoint_suffix

        def newest_if_not_last() -> str:
            """Return the checkpoint to load in place of checkpoint_last, "" for none."""
            return str(reading.other_than_last(folder, suffix) or "")

        other = agreement.broadcast_from_first(newest_if_not_last)
        if not other:
            return cfg

        self._damaged_last = folder / f"{atomic.LAST}{suffix}.pt"
        cfg = copy.deepcopy(cfg)
        cfg.restore_file = other.removesuffix(f"{suffix}.pt") + ".pt"  # fairseq adds the suffix
        # both flags name a checkpoint to begin from in a folder that has none yet; this folder has `other`
        cfg.finetune_from_model = None
        cfg.continue_once = None
        return cfg

    def restore(self, extra_state: dict, reset_meters: bool) -> None:
        """Restore what a checkpoint's extra_state says of the run; DeepTrainer calls it while it loads the checkpoint.

        reset_meters: True with --reset-meters, and for a model of --finetune-from-model; then nothing of
        _restore_counts is restored.

        In extra_state the state of fairseq's iterator is set to the beginning of the epoch. fairseq would go to the
        saved batch, which may not exist if the batches are others now (--max-tokens, other data). The saved state is
        kept in saved_place, and DeepTrainer.go_to_saved_place goes there afterwards.
        """
        self.resumed = True
        if not reset_meters:
            self._restore_counts(extra_state)
        self.saved_place = extra_state["train_iterator"]
        extra_state["train_iterator"] = self.saved_place | {"iterations_in_epoch": 0}

    def _restore_counts(self, extra_state: dict) -> None:
        """Restore what fairseq would start afresh.

        That is the state of --stop-stuck, the averages, the epoch that made the batches, the state of --patience, the
        count of --ema-update-freq and the number of CPU threads. extra_state: the checkpoint's.
        """
        trainer = self.trainer
        trainer.stuck.resume(extra_state)
        if exact_resume.between_epochs(extra_state) and "metrics" in extra_state:
            exact_resume.restore_averages(extra_state["metrics"])  # fairseq restores them only within an epoch
        saved = extra_state.get(exact_resume.KEY)  # what _process_state returned
        if not saved:  # a checkpoint of fairseq alone
            return

        self.batches_made_in = saved["batches_made_in"]
        self.best.set_patience(saved["patience"])
        if saved["ema_counter"] is not None and trainer.cfg.ema.store_ema:
            trainer.ema.update_freq_counter = saved["ema_counter"]

        # the number of threads decides the last bits of sums on a CPU; with other processes they differ in any case
        processes_now = trainer.data_parallel_world_size
        processes_before = extra_state["train_iterator"].get(datasets.PROCESSES)
        if trainer.device.type == "cpu" and processes_before == processes_now:
            exact_resume.keep_threads(saved.get("threads"))  # checkpoints of early versions have no number

    def _finish_epoch(self, extra_state: dict) -> None:
        """Do what was still to do after the saved update: validate, log the epoch's averages, step the learning rate.

        fairseq saves before it logs the averages and steps the learning rate. A training that a signal has ended was
        also saved before it validated.

        extra_state: the checkpoint's, with the iterator's state at which the training goes on (go_to_saved_place).
        """
        trainer = self.trainer
        saved = extra_state.get(exact_resume.KEY) or {}  # of _process_state; {} for a checkpoint of fairseq alone
        place = extra_state["train_iterator"]
        epoch_had_ended = exact_resume.between_epochs(extra_state)
        epoch = place["epoch"] - 1 if epoch_had_ended else place["epoch"]  # after an epoch `place` is in the next one
        self._restore_schedule(saved.get("lr_scheduler"))

        # losses: of the --valid-subsets, the first of which decides; over: whether the training has reached its end
        losses = [extra_state.get("val_loss")]
        over = self._limits_reached()
        if saved.get("unfinished") is not None and self.program is not None:
            # A signal stopped fairseq's validate_and_save, so it is called again. In place of the iterator, which has
            # no batch left at the end of an epoch, it gets the three attributes that a save reads.
            batches = SimpleNamespace(epoch=epoch, end_of_epoch=lambda: epoch_had_ended, state_dict=lambda: place)
            self._averages = saved["averages"]  # for the checkpoint that it may write
            subsets = trainer.cfg.dataset.valid_subset.split(",")
            validate_and_save = self.program.namespace["validate_and_save"]
            losses, over = validate_and_save(trainer.cfg, trainer, trainer.task, batches, subsets, saved["unfinished"])
            self._averages = {}

        if saved.get("averages") and (epoch_had_ended or over):  # fairseq logs them at the end of `train`
            exact_resume.log_averages(trainer, epoch, saved["averages"])

        if over:
            self.result_if_over = losses, True
        elif epoch_had_ended:
            trainer.lr_step(epoch, losses[0])

    def _restore_schedule(self, state: dict | None) -> None:
        """Restore torch's scheduler inside reduce_lr_on_plateau; fairseq restores only its best loss and its epoch.

        state: of that scheduler, None under another --lr-scheduler. Nothing is restored under --reset-lr-scheduler.
        """
        schedule: Any = getattr(self.trainer.lr_scheduler, "lr_scheduler", None)
        if state and hasattr(schedule, "load_state_dict") and not self.trainer.cfg.checkpoint.reset_lr_scheduler:
            schedule.load_state_dict(state)

    def _limits_reached(self) -> bool:
        """Return whether --max-update, --stop-time-hours or --patience ends the run; fairseq checks --max-epoch."""
        limits = self.trainer.cfg.optimization
        patience = self.trainer.cfg.checkpoint.patience
        if self.trainer.get_num_updates() >= (limits.max_update or math.inf):
            return True
        if self.trainer.cumulative_training_time() / 3600 > (limits.stop_time_hours or math.inf):
            return True
        validations_without_progress = self.best.patience.get("num_runs", 0)
        return 0 < patience <= validations_without_progress

    # an epoch

    def train(self, fairseq_train, task, batches):
        """Train one epoch by fairseq's `train`, and return its result: (validation losses, whether to stop training).

        batches: fairseq's EpochBatchIterator. A training that was over when it was started makes no update. One that
        diverges or is stuck ends the process with a line and a status of its own; one whose last save failed raises a
        UserError. When the training ends, in any of these ways or by its limits, its folder and signal handlers are
        freed.
        """
        limits = self.trainer.cfg.optimization
        ends_here = True  # an error ends the training; without one it is decided below
        try:
            result = self.result_if_over
            if result is None:
                self.signals.watch()
                result = self._train_or_end(fairseq_train, task, batches)
            _losses, should_stop = result
            is_last = batches.next_epoch_idx > (limits.max_epoch or math.inf)
            ends_here = should_stop or is_last or self.trainer.get_lr() <= limits.stop_min_lr
            if ends_here:
                self._check_saved()
            return result
        finally:
            if ends_here:
                self.stop()

    def _train_or_end(self, fairseq_train, task, batches):
        """Train one epoch by fairseq's `train` and return its result; end the program if it diverges or is stuck.

        Raises a UserError if a process that loads data was killed.
        """
        trainer = self.trainer
        if trainer.stuck.over:  # by the validations before a resume
            self._end(stuck.STATUS, trainer.stuck.headline())
        try:
            result = fairseq_train(trainer.cfg, trainer, task, batches)
        except divergence.Diverged as error:
            # headline() repeats the update, so it is called below, after this block: until then the error's traceback
            # keeps the first try's tensors in memory
            details = error.update, error.kind, error.samples
        except (RuntimeError, OSError, EOFError) as error:
            datasets.explain_lost_loader(trainer.cfg, error)
            raise
        else:
            if trainer.stuck.over:
                self._end(stuck.STATUS, trainer.stuck.headline())
            return result
        self._end(divergence.STATUS, divergence.headline(trainer, *details))

    def _end(self, status: int, line: str) -> NoReturn:
        """End the program with an exit status, after rank 0 has printed `line` on standard error."""
        if agreement.is_first():
            print(f"{Path(sys.argv[0]).name}: error: {line}", file=sys.stderr)
        agreement.barrier()  # torchrun ends all processes as soon as one has ended
        raise SystemExit(status)

    def validate_and_save(self, fairseq_validate_and_save, task, batches, valid_subsets, end_of_epoch: bool):
        """Validate and save after an update, if that is due; save and end the program if a signal came.

        batches: fairseq's iterator over the epoch; valid_subsets: names; end_of_epoch: whether the update is the
        epoch's last. Return fairseq's result, (validation losses, whether the training is over), in which a stuck
        training is over too. To be stuck is no reason for a save: fairseq has decided about saving before.
        """
        trainer = self.trainer
        try:
            self.signals.raise_if_signalled(trainer.device)
            with self.best.in_fairseq():  # fairseq compares with the best losses of this run, not of another one
                losses, over = fairseq_validate_and_save(
                    trainer.cfg, trainer, task, batches, valid_subsets, end_of_epoch
                )
            return losses, over or trainer.stuck.over
        except Stopped:
            pass  # _save_and_exit is called below, after this block, so that its errors are not chained to Stopped
        self._save_and_exit(batches, end_of_epoch)

    # save

    def save(self, fairseq_save, cfg, batches, val_loss):
        """Save by fairseq's save_checkpoint(cfg, trainer, batches, val_loss), and return its result.

        cfg: the config's section for checkpoints; batches: fairseq's iterator over the epoch; val_loss: None where no
        validation was due. A save that fails is a warning in the log; the training goes on, and None is returned.
        Raises Diverged if a weight is not finite: such a checkpoint is useless, and must not replace a good one.
        """
        trainer = self.trainer
        if not cfg.no_save:
            finite_by_rank = agreement.all_gather(divergence.all_finite(trainer.get_model()))
            if not all(finite_by_rank):
                raise divergence.Diverged(trainer.get_num_updates(), divergence.WEIGHTS, trainer.samples)
        try:
            with self.best.in_fairseq():
                path = self._save_by_flags(fairseq_save, cfg, batches, val_loss)
        except (atomic.SaveError, OSError) as error:
            if isinstance(error, atomic.SaveError):
                self._save_error = error
            else:
                self._save_error = atomic.SaveError(error.filename or cfg.save_dir, error)
            log.warning(f"{self._save_error}; the training goes on, {saving.describe_resume(cfg)}")
            return None
        self._save_error = None
        return path

    def _save_by_flags(self, fairseq_save, cfg, batches, val_loss):
        """Save by fairseq's save_checkpoint, with two changes; the arguments and the result are those of `save`.

        With --epoch-weights an epoch gets no checkpoint, but a file of weights if they may be wanted, and the best loss
        gets neither. At the last update of an epoch fairseq does not look at --save-interval-updates. Here the flag
        holds for that update too, and one file gets two names, the epoch's and the update's. Returns None if no save is
        due.
        """
        trainer = self.trainer
        updates = self.trainer.get_num_updates()
        self._val_loss = val_loss  # for the checkpoint: a resume steps the learning rate by it
        flag = getattr(trainer.cfg.model, "epoch_weights", None)  # None also for another package's model
        if flag is not None:
            val_loss = None  # without a loss fairseq saves no checkpoint_best
            cfg = copy.deepcopy(cfg)
            cfg.no_epoch_checkpoints = True
            cfg.keep_last_epochs = -1  # so that fairseq removes no checkpoint of an epoch that is there already
            if batches.end_of_epoch():
                limits = trainer.cfg.optimization
                epoch = batches.epoch
                if epoch_weights.may_be_wanted(flag, epoch, updates, limits.max_epoch or 0, limits.max_update or 0):
                    self._weights_file = epoch_weights.weights_file(cfg, flag, epoch, trainer.checkpoint_suffix)
                elif epoch_weights.surely_goes_on(cfg, limits, epoch, updates) and updates % cfg.save_interval_updates:
                    return None  # checkpoints are saved every so many updates, not now, and no weights are wanted

        interval = cfg.save_interval_updates
        due_by_updates = interval > 0 and updates % interval == 0
        late_enough = updates >= trainer.cfg.dataset.validate_after_updates  # fairseq saves no update before this one
        if batches.end_of_epoch() and due_by_updates and late_enough:
            # Tell fairseq that the epoch has not ended, so that it saves under the name checkpoint_EPOCH_UPDATES.
            # `write` gives the file the epoch's name too, if the epoch is to be saved, before fairseq removes old
            # checkpoints.
            if not cfg.no_epoch_checkpoints and batches.epoch % cfg.save_interval == 0:
                name = f"checkpoint{batches.epoch}{trainer.checkpoint_suffix}.pt"
                self._second_path = os.path.join(cfg.save_dir, name)
            batches = SimpleNamespace(epoch=batches.epoch, end_of_epoch=lambda: False, state_dict=batches.state_dict)

        try:
            return fairseq_save(cfg, trainer, batches, val_loss)
        finally:
            self._second_path = None
            self._weights_file = None

    def write(self, filename: str, extra_state: dict) -> str | None:
        """Write a checkpoint, whole or not at all; add a second name and a file of weights if _save_by_flags says so.

        filename: its path; extra_state: the one that fairseq has made for it. Return the path as an absolute one.
        Raises SaveError if it cannot be written. For crash.pt, which fairseq writes while it handles another error,
        None is returned instead, and a warning logged.
        """
        path = os.path.abspath(filename)
        log.info(f"Saving checkpoint to {path}")
        state = saving.on_cpu(self.trainer.state_dict())
        state["extra_state"] |= extra_state | self._extra_state(extra_state)
        self._remove_damaged_last()
        try:
            atomic.save(state, filename)
            if self._second_path is not None:
                PathManager.copy(filename, self._second_path, overwrite=True)  # a hard link: it is atomic.copy here
            if self._weights_file is not None:
                epoch_weights.write_weights(state, self._weights_file)
        except atomic.SaveError as error:
            if os.path.basename(filename) != "crash.pt":
                raise
            log.warning(str(error))
            return None
        log.info(f"Finished saving checkpoint to {path}")
        return path

    def _remove_damaged_last(self) -> None:
        """Remove a damaged checkpoint_last, which a save would otherwise keep as checkpoint_previous for a good one."""
        if self._damaged_last is not None:
            self._damaged_last.unlink(missing_ok=True)
            self._damaged_last = None

    def _extra_state(self, of_fairseq: dict) -> dict:
        """Return the entries of a checkpoint's extra_state that this package adds or replaces (see the class).

        of_fairseq: the extra_state that fairseq has made. For crash.pt it has no entries train_iterator and val_loss.
        """
        trainer = self.trainer
        ours = {exact_resume.KEY: self._process_state()} | trainer.stuck.entry_for_checkpoint()
        ours[graph_settings.KEY] = 0 if trainer.graphs is None else trainer.graphs.for_checkpoint
        if "train_iterator" in of_fairseq:
            ours["train_iterator"] = datasets.place_to_save(
                of_fairseq["train_iterator"], trainer.iterator, trainer.data_parallel_world_size
            )
        if "val_loss" in of_fairseq:
            ours["val_loss"] = self._val_loss  # fairseq does not know it under --epoch-weights
        return ours

    def _process_state(self) -> dict[str, Any]:
        """Return what a resume that is exact to the bit needs, and fairseq keeps in the process only."""
        trainer = self.trainer
        dataset = trainer.task.datasets.get(trainer.cfg.dataset.train_subset)
        batches = trainer.task.dataset_to_epoch_iter.get(dataset)  # the iterator that fairseq has cached, or None
        schedule: Any = getattr(trainer.lr_scheduler, "lr_scheduler", None)
        return {
            "patience": self.best.patience,
            # torch's scheduler inside reduce_lr_on_plateau: of that fairseq saves the best loss and the epoch alone
            "lr_scheduler": schedule.state_dict() if hasattr(schedule, "state_dict") else None,
            # how many updates ago the average was made, under --ema-update-freq
            "ema_counter": trainer.ema.update_freq_counter if trainer.cfg.ema.store_ema else None,
            "batches_made_in": getattr(batches, "made_in", None),  # None if each epoch makes its own batches
            # end_of_epoch of the call of validate_and_save that a signal stopped, which a resume repeats; else None
            "unfinished": self._unfinished_end_of_epoch,
            "averages": self._averages | exact_resume.averages(),  # of the epoch so far, by name
            # sums are rounded differently with another number of threads
            "threads": torch.get_num_threads() if trainer.device.type == "cpu" else None,
        }

    def _check_saved(self) -> None:
        """Raise a UserError on all ranks if the latest save, which rank 0 makes, failed."""

        def failure() -> str:
            if self._save_error is None:
                return ""
            return f"the last save failed: {self._save_error}; {saving.describe_resume(self.trainer.cfg.checkpoint)}"

        if text := agreement.broadcast_from_first(failure):
            raise UserError(text)

    # stop

    def _save_and_exit(self, batches, end_of_epoch: bool) -> NoReturn:
        """Save checkpoint_last, and no other checkpoint, after a signal; end the program with status 128 + signal.

        batches: fairseq's iterator over the epoch; end_of_epoch: what fairseq passed to validate_and_save, which a
        resume calls again with the same value. Raises a UserError instead if the save fails.
        """
        trainer = self.trainer
        kind = self.signals.agreed_signal(trainer.device)
        updates = trainer.get_num_updates()

        # settings with which fairseq saves checkpoint_last alone
        cfg = copy.deepcopy(trainer.cfg.checkpoint)
        cfg.no_epoch_checkpoints = True
        cfg.no_last_checkpoints = False
        cfg.save_interval_updates = 0
        for rule in saving.RULES_OF_OLD_ONES:  # no older checkpoint is removed
            setattr(cfg, rule, -1)

        self._unfinished_end_of_epoch = end_of_epoch
        try:
            checkpoint_utils.save_checkpoint(cfg, trainer, batches, None)  # calls `save` (patches.py)
            self._check_saved()
        except UserError as error:
            raise UserError(f"stopped by {kind.name} after update {updates}, and {error}") from None
        finally:
            self._unfinished_end_of_epoch = None

        agreement.barrier()  # torchrun ends all processes as soon as one does
        path = Path(cfg.save_dir) / f"{atomic.LAST}{trainer.checkpoint_suffix}.pt"
        saved = "nothing is saved (--no-save)" if cfg.no_save else f"{path} is saved, the same command goes on from it"
        log.info(f"stopped by {kind.name} after update {updates}: {saved}")
        self.signals.note_end(kind)
        raise SystemExit(128 + kind)

    def stop(self) -> None:
        """Put the signals' handlers back, and free the folder for the next training; a second call does nothing."""
        self.signals.unwatch()
        self.lock.release()


def load_checkpoint(original, cfg, trainer, **kwargs):
    """Start the trainer's run, and resume it if there is a checkpoint.

    fairseq-train's main calls this before any other function with a trainer.
    """
    return trainer.run.resume(original, cfg, **kwargs)


def train(original, cfg, trainer, task, epoch_itr):
    """Train an epoch of the trainer's run."""
    return trainer.run.train(original, task, epoch_itr)


def validate_and_save(original, cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch):
    """Validate and save the trainer's run after an update."""
    return trainer.run.validate_and_save(original, task, epoch_itr, valid_subsets, end_of_epoch)


def save_checkpoint(original, cfg, trainer, epoch_itr, val_loss):
    """Save the trainer's run by the flags in `cfg`, the config's section for checkpoints."""
    return trainer.run.save(original, cfg, epoch_itr, val_loss)
