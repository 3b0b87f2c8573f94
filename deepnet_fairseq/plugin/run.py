"""Class Run: what a training is beside its updates: its folder, its saves and resumes, its end.

The functions at the end are called in place of fairseq's of the same name (patches.py).
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
    """fairseq-train as the process runs it: the namespace in which its main looks its functions up.

    run: of the trainer that was made last, whose folder and signals are freed when main has ended in any way.
    """

    def __init__(self, namespace: dict[str, Any]):
        self.namespace = namespace
        self.run: Run | None = None

    def end(self) -> None:
        """Stop the run, if there is one."""
        if self.run is not None:
            self.run.stop()
            self.run = None


class Run:
    """One training, from the lock on its folder to its last save.

    DeepTrainer holds one, which shares nothing with the run of another trainer in the process; fairseq's own averages
    for the log are common to both.

    A checkpoint that it writes holds, in the order of fairseq's state:

    - cfg, args: the config, or the arguments of fairseq-train;
    - model: the weights, in float32 also where training has them in half precision, tied ones once;
    - criterion: weights of the loss, for one that has any;
    - optimizer_history: the number of updates, the schedule's state, and the classes of criterion and optimiser;
    - last_optimizer_state: the optimiser's moments; in half precision float32 weights and the loss scale's counts too
      (optimisers/float32_weights.py);
    - task_state: what the task keeps, with the digests of its vocabularies (vocabulary.py);
    - extra_state, which holds
        - train_iterator: epoch and batches done in it, with the number of processes and of the epoch's batches;
        - val_loss, best: the last and the best validation loss;
        - metrics, previous_training_time: averages and seconds; ema and ema_fp32_params under --store-ema;
        - deepnet_training: what `_kept` returns;
        - deepnet_stuck: since when validations are no better than guessing (stuck.py), under --stop-stuck;
        - deepnet_cuda_graphs: the number of shapes of --cuda-graphs, 0 without.

    resumed: whether a checkpoint was loaded; place: where in an epoch it was saved, as the state of fairseq's iterator;
    batches_made_in: the epoch in which the resumed training made its batches, None to make them anew; over: what
    fairseq's `train` returns for a training that was over when it was started, else None.
    """

    def __init__(self, trainer, program: Program | None = None):
        self.trainer = trainer
        self.program = program
        self.lock = FolderLock()
        self.signals = Signals()
        self.best = BestLosses({} if program is None else program.namespace)
        self.resumed = False
        self.place: dict[str, Any] = {}
        self.batches_made_in: int | None = None
        self.over: tuple[list, bool] | None = None

        self._save_error: atomic.SaveError | None = None  # of the latest save
        self._damaged_last: Path | None = None  # a checkpoint_last that the resume has passed over
        self._averages: dict[str, float] = {}  # the epoch's from before the resume, while its update is finished
        self._epoch_had_ended: bool | None = None  # set while saving after a signal, before the update was validated
        self._second_name: str | None = None  # path that the file of the running save gets too
        self._weights_beside: epoch_weights.Beside | None = None  # file for the weights of the running save alone
        if program is not None:
            program.run = self

    # start

    def start(self) -> None:
        """Choose the CPU's threads, describe the training in the log, lock its folder, clear it of unfinished files.

        Raises a UserError, before anything is written, if another training has the folder.
        """
        cfg = self.trainer.cfg
        if self.trainer.device.type == "cpu":
            torch_threads.use(width_of(cfg.model), processes=processes_here(cfg))
        logging.getLogger("deepnet_fairseq.training").info(opening_line(self.trainer))

        saving.check_settings(cfg.checkpoint)
        if not cfg.checkpoint.no_save:
            folder = Path(cfg.checkpoint.save_dir)
            self.lock.take(folder)
            if agreement.is_first():
                atomic.remove_unfinished(folder)

    # resume

    def resume(self, load, cfg, **kwargs):
        """Start, load the folder's newest checkpoint that is whole, and finish the epoch in which it was saved.

        load: fairseq's load_checkpoint(cfg, trainer, **kwargs), cfg being the config's section for checkpoints. Return
        what it returns, the checkpoint's extra_state (None without a checkpoint) and the batches of the epoch.
        """
        try:
            self.start()
            with self.best.lent():
                return self._load(load, cfg, kwargs)
        except BaseException:
            self.stop()
            raise

    def _load(self, load, cfg, kwargs: dict):
        cfg = self._from_newest_whole(cfg)
        last = Path(cfg.save_dir) / f"{atomic.LAST}{self.trainer.checkpoint_suffix}.pt"
        of_another_run = cfg.finetune_from_model is not None and not last.exists()
        extra_state, batches = load(cfg, self.trainer, **kwargs)
        if extra_state is None:
            if cfg.restore_file != reading.DEFAULT:  # named in a YAML: the command line has checked it
                missing = reading.with_suffix(cfg.restore_file, self.trainer.checkpoint_suffix)
                raise UserError(f"--restore-file {cfg.restore_file}: there is no {missing}")
            return None, batches

        if of_another_run or cfg.reset_dataloader:
            extra_state["train_iterator"] = self.place
        else:
            extra_state["train_iterator"] = self.trainer.go_on_from(batches)
            if not (cfg.reset_meters or cfg.reset_optimizer):
                self.signals.watch()  # finishing the epoch may validate
                self._finish_epoch(extra_state)
        if exact_resume.between_epochs(extra_state) and metrics.get_meters("train"):
            metrics.reset_meters("train")
        return extra_state, batches

    def _from_newest_whole(self, cfg):
        """Return a config that loads the folder's newest whole checkpoint; cfg itself if that is checkpoint_last."""
        if cfg.restore_file != reading.DEFAULT:
            return cfg
        folder, suffix = Path(cfg.save_dir), self.trainer.checkpoint_suffix
        other = agreement.broadcast_from_first(lambda: str(reading.other_than_last(folder, suffix) or ""))
        if not other:
            return cfg

        self._damaged_last = folder / f"{atomic.LAST}{suffix}.pt"
        cfg = copy.deepcopy(cfg)
        cfg.restore_file = other.removesuffix(f"{suffix}.pt") + ".pt"  # fairseq adds the suffix
        cfg.finetune_from_model = None
        cfg.continue_once = None
        return cfg

    def restore(self, extra_state: dict, reset_meters: bool) -> None:
        """Restore what a checkpoint's extra_state says of the run; DeepTrainer calls it while it loads the checkpoint.

        reset_meters: the flag, which drops averages, patience and the other counts. The batches are moved to their
        place by DeepTrainer.go_on_from: fairseq would move to one that this epoch may not have.
        """
        self.resumed = True
        if not reset_meters:
            self._restore_counts(extra_state)
        self.place = extra_state["train_iterator"]
        extra_state["train_iterator"] = self.place | {"iterations_in_epoch": 0}

    def _restore_counts(self, extra_state: dict) -> None:
        trainer = self.trainer
        trainer.stuck.resume(extra_state)
        if exact_resume.between_epochs(extra_state) and "metrics" in extra_state:
            exact_resume.restore_averages(extra_state["metrics"])  # fairseq starts all of them anew there
        kept = extra_state.get(exact_resume.KEY)
        if not kept:
            return

        self.batches_made_in = kept["batches_made_in"]
        self.best.set_patience(kept["patience"])
        if kept["ema_counter"] is not None and trainer.cfg.ema.store_ema:
            trainer.ema.update_freq_counter = kept["ema_counter"]
        processes = extra_state["train_iterator"].get(datasets.PROCESSES, trainer.data_parallel_world_size)
        if trainer.device.type == "cpu" and processes == trainer.data_parallel_world_size:
            exact_resume.keep_threads(kept.get("threads"))

    def _finish_epoch(self, extra_state: dict) -> None:
        """Do what was still to do after the update that was saved: validate, log the epoch's averages, step the rate.

        fairseq saves before that; a training that a signal has stopped is also saved before it has validated.
        """
        trainer = self.trainer
        kept, state = extra_state.get(exact_resume.KEY) or {}, extra_state["train_iterator"]
        epoch_had_ended = exact_resume.between_epochs(extra_state)
        epoch = state["epoch"] - 1 if epoch_had_ended else state["epoch"]
        self._restore_schedule(kept.get("lr_scheduler"))

        losses, over = [extra_state.get("val_loss")], self._is_over()
        # "unfinished": what fairseq's loop passed as end_of_epoch; None if validate_and_save had done its work
        if kept.get("unfinished") is not None and self.program is not None:
            # the attributes of an epoch's batches that a save reads, for one whose batches are used up
            batches = SimpleNamespace(epoch=epoch, end_of_epoch=lambda: epoch_had_ended, state_dict=lambda: state)
            self._averages = kept["averages"]
            subsets = trainer.cfg.dataset.valid_subset.split(",")
            validate_and_save = self.program.namespace["validate_and_save"]
            losses, over = validate_and_save(trainer.cfg, trainer, trainer.task, batches, subsets, kept["unfinished"])
            self._averages = {}

        if kept.get("averages") and (epoch_had_ended or over):
            exact_resume.log_averages(trainer, epoch, kept["averages"])
        if over:
            self.over = losses, True
        elif epoch_had_ended:
            trainer.lr_step(epoch, losses[0])

    def _restore_schedule(self, state: dict | None) -> None:
        """Restore torch's scheduler inside reduce_lr_on_plateau, which fairseq has moved when it loaded."""
        schedule: Any = getattr(self.trainer.lr_scheduler, "lr_scheduler", None)
        if state and hasattr(schedule, "load_state_dict") and not self.trainer.cfg.checkpoint.reset_lr_scheduler:
            schedule.load_state_dict(state)

    def _is_over(self) -> bool:
        """Return whether the run's present limits are reached; fairseq-train checks the limit of epochs itself."""
        limits, patience = self.trainer.cfg.optimization, self.trainer.cfg.checkpoint.patience
        if self.trainer.get_num_updates() >= (limits.max_update or math.inf):
            return True
        if self.trainer.cumulative_training_time() / 3600 > (limits.stop_time_hours or math.inf):
            return True
        return 0 < patience <= self.best.patience.get("num_runs", 0)

    # an epoch

    def train(self, train, task, batches):
        """Train one epoch by fairseq's `train`; return what it returns, validation losses and whether that is the end.

        A training that was over when it was started makes no update. One that diverges or is stuck ends the process
        with a line and a status of its own; one whose last save failed ends with a UserError.
        """
        cfg, over, ended = self.trainer.cfg, self.over, True
        try:
            if over is None:
                self.signals.watch()
                over = self._train_or_end(train, task, batches)
            is_last = batches.next_epoch_idx > (cfg.optimization.max_epoch or math.inf)
            ended = over[1] or is_last or self.trainer.get_lr() <= cfg.optimization.stop_min_lr
            if ended:
                self._check_saved()
            return over
        finally:
            if ended:
                self.stop()

    def _train_or_end(self, train, task, batches):
        trainer = self.trainer
        if trainer.stuck.over:
            self._end(stuck.STATUS, trainer.stuck.headline())
        try:
            answer = train(trainer.cfg, trainer, task, batches)
        except divergence.Diverged as error:
            details = error.update, error.kind, error.samples  # the error's traceback would keep the step's tensors
        except (RuntimeError, OSError, EOFError) as error:
            datasets.explain_lost_loader(trainer.cfg, error)
            raise
        else:
            if trainer.stuck.over:
                self._end(stuck.STATUS, trainer.stuck.headline())
            return answer
        self._end(divergence.STATUS, divergence.headline(trainer, *details))

    def _end(self, status: int, line: str) -> NoReturn:
        """End the program with a status, and a line on standard error."""
        if agreement.is_first():
            print(f"{Path(sys.argv[0]).name}: error: {line}", file=sys.stderr)
        agreement.barrier()  # torchrun ends all processes as soon as one has ended
        raise SystemExit(status)

    def validate_and_save(self, validate_and_save, task, batches, valid_subsets, end_of_epoch: bool):
        """Validate and save after an update, where one is due; end the program with a checkpoint if a signal came.

        validate_and_save: fairseq's, whose answer is returned: validation losses, and whether the training is over. A
        stuck training gets no final save.
        """
        trainer = self.trainer
        try:
            self.signals.raise_if_any(trainer.device)
            with self.best.lent():
                losses, over = validate_and_save(trainer.cfg, trainer, task, batches, valid_subsets, end_of_epoch)
            return losses, over or trainer.stuck.over  # fairseq does not know of the latter, and saves nothing for it
        except Stopped:
            pass  # leave the handler: errors raised below must not be chained to this one
        self._save_and_exit(batches, end_of_epoch)

    # save

    def save(self, save, cfg, batches, val_loss):
        """Save by fairseq's save_checkpoint(cfg, trainer, batches, val_loss); return the file's path.

        A save that fails is a warning in the log, and the training goes on. Raises Diverged if a weight is not finite:
        such a checkpoint is useless, and must not replace a good one.
        """
        trainer = self.trainer
        if not cfg.no_save and not all(agreement.all_gather(divergence.all_finite(trainer.get_model()))):
            raise divergence.Diverged(trainer.get_num_updates(), divergence.WEIGHTS, trainer.samples)
        try:
            with self.best.lent():
                path = self._save_by_flags(save, cfg, batches, val_loss)
        except (atomic.SaveError, OSError) as error:
            path = getattr(error, "filename", None) or cfg.save_dir
            self._save_error = error if isinstance(error, atomic.SaveError) else atomic.SaveError(path, error)
            log.warning(f"{self._save_error}; the training goes on, {saving.left(cfg)}")
            return None
        self._save_error = None
        return path

    def _save_by_flags(self, save, cfg, batches, val_loss):
        """Save with two changes to fairseq's flags.

        --epoch-weights leaves checkpoints of epochs and of the best score out. --save-interval-updates holds for the
        last update of an epoch too, where fairseq saves either the update or the epoch.
        """
        trainer, updates = self.trainer, self.trainer.get_num_updates()
        flag = getattr(trainer.cfg.model, "epoch_weights", None)
        if flag is not None:
            val_loss = None
            cfg = copy.deepcopy(cfg)
            cfg.no_epoch_checkpoints = True
            cfg.keep_last_epochs = -1  # checkpoints of epochs that are there already stay
            if batches.end_of_epoch():
                limits, epoch = trainer.cfg.optimization, batches.epoch
                if epoch_weights.wanted(flag, epoch, updates, limits.max_epoch or 0, limits.max_update or 0):
                    self._weights_beside = epoch_weights.beside(cfg, flag, epoch, trainer.checkpoint_suffix)
                elif epoch_weights.goes_on(cfg, limits, epoch, updates) and updates % cfg.save_interval_updates:
                    return None  # the state is saved by updates, and this epoch's weights are not wanted

        interval = cfg.save_interval_updates
        is_of_interval = batches.end_of_epoch() and interval > 0 and updates % interval == 0
        if is_of_interval and updates >= trainer.cfg.dataset.validate_after_updates:  # as within an epoch
            # fairseq sees an epoch that goes on, and saves checkpoint_E_U; the epoch's own name is given to the same
            # file before fairseq removes old ones
            if not cfg.no_epoch_checkpoints and batches.epoch % cfg.save_interval == 0:
                name = f"checkpoint{batches.epoch}{trainer.checkpoint_suffix}.pt"
                self._second_name = os.path.join(cfg.save_dir, name)
            batches = SimpleNamespace(epoch=batches.epoch, end_of_epoch=lambda: False, state_dict=batches.state_dict)

        try:
            return save(cfg, trainer, batches, val_loss)
        finally:
            self._second_name = None
            self._weights_beside = None

    def write(self, filename: str, extra_state: dict) -> str | None:
        """Write a checkpoint that is whole or absent, and the files beside it; return its path, None if it failed.

        extra_state: fairseq's. Raises SaveError if the disk does not take the file, but not for crash.pt, which fairseq
        writes while an error is on its way to the user.
        """
        path = os.path.abspath(filename)
        log.info(f"Saving checkpoint to {path}")
        state = saving.on_cpu(self.trainer.state_dict())
        state["extra_state"] |= extra_state | self._extra_state(extra_state)
        self._remove_damaged_last()
        try:
            atomic.save(state, filename)
            if self._second_name is not None:
                PathManager.copy(filename, self._second_name, overwrite=True)
            if self._weights_beside is not None:
                epoch_weights.write(state, self._weights_beside)
        except atomic.SaveError as error:
            if os.path.basename(filename) != "crash.pt":
                raise
            log.warning(str(error))
            return None
        log.info(f"Finished saving checkpoint to {path}")
        return path

    def _remove_damaged_last(self) -> None:
        """Remove a damaged checkpoint_last, which would be kept as checkpoint_previous in the place of a whole one."""
        if self._damaged_last is not None:
            self._damaged_last.unlink(missing_ok=True)
            self._damaged_last = None

    def _extra_state(self, of_fairseq: dict) -> dict:
        """Return the members of a checkpoint's extra_state that are ours, or differ from fairseq's."""
        trainer = self.trainer
        ours = {exact_resume.KEY: self._kept()} | trainer.stuck.kept()
        ours[graph_settings.KEY] = 0 if trainer.graphs is None else trainer.graphs.chosen
        if "train_iterator" in of_fairseq:
            ours["train_iterator"] = datasets.place_to_save(
                of_fairseq["train_iterator"], trainer.iterator, trainer.data_parallel_world_size
            )
        return ours

    def _kept(self) -> dict:
        """Return what fairseq keeps in the process only, and a resume that goes on bit for bit needs."""
        trainer = self.trainer
        dataset = trainer.task.datasets.get(trainer.cfg.dataset.train_subset)
        batches = trainer.task.dataset_to_epoch_iter.get(dataset)
        schedule: Any = getattr(trainer.lr_scheduler, "lr_scheduler", None)
        return {
            "patience": self.best.patience,
            # torch's scheduler inside reduce_lr_on_plateau: fairseq keeps its best value, not its age
            "lr_scheduler": schedule.state_dict() if hasattr(schedule, "state_dict") else None,
            # how many updates ago the average was made, under --ema-update-freq
            "ema_counter": trainer.ema.update_freq_counter if trainer.cfg.ema.store_ema else None,
            "batches_made_in": getattr(batches, "made_in", None),  # None if each epoch makes its own batches
            # whether the epoch had ended, if the update is still to be validated and saved; else None
            "unfinished": self._epoch_had_ended,
            "averages": self._averages | exact_resume.averages(),
            # sums of several threads are rounded in another order than those of one
            "threads": torch.get_num_threads() if trainer.device.type == "cpu" else None,
        }

    def _check_saved(self) -> None:
        """Raise a UserError on all ranks if the latest save failed."""

        def failure() -> str:
            if self._save_error is None:
                return ""
            return f"the last save failed: {self._save_error}; {saving.left(self.trainer.cfg.checkpoint)}"

        if text := agreement.broadcast_from_first(failure):
            raise UserError(text)

    # stop

    def _save_and_exit(self, batches, end_of_epoch: bool) -> NoReturn:
        """Answer a signal: save checkpoint_last and no other, and end the program with the signal's status."""
        trainer = self.trainer
        kind, updates = self.signals.agreed(trainer.device), trainer.get_num_updates()
        cfg = copy.deepcopy(trainer.cfg.checkpoint)
        cfg.no_epoch_checkpoints = True
        cfg.no_last_checkpoints = False
        cfg.save_interval_updates = 0
        for rule in saving.RULES_OF_OLD_ONES:  # no older checkpoint is removed
            setattr(cfg, rule, -1)

        self._epoch_had_ended = end_of_epoch
        try:
            checkpoint_utils.save_checkpoint(cfg, trainer, batches, None)
            self._check_saved()
        except UserError as error:
            raise UserError(f"stopped by {kind.name} after update {updates}, and {error}") from None
        finally:
            self._epoch_had_ended = None

        agreement.barrier()  # torchrun ends all processes as soon as one does
        path = Path(cfg.save_dir) / f"{atomic.LAST}{trainer.checkpoint_suffix}.pt"
        saved = "nothing is saved (--no-save)" if cfg.no_save else f"{path} is saved, the same command goes on from it"
        log.info(f"stopped by {kind.name} after update {updates}: {saved}")
        self.signals.answered(kind)
        raise SystemExit(128 + kind)

    def stop(self) -> None:
        """Put the signals' handlers back, and free the folder for the next training; a second call does nothing."""
        self.signals.unwatch()
        self.lock.release()


def load_checkpoint(original, cfg, trainer, **kwargs):
    """Resume the trainer's run; the first call that fairseq-train's main makes with its Trainer."""
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
