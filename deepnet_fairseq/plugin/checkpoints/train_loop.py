"""Handlers around fairseq-train's loop: resume a run, end it, and stop it with a checkpoint at a signal.

SIGTERM and SIGUSR1, by which schedulers announce the end, are noticed at once and answered between two updates.
"""

from __future__ import annotations

import copy
import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from fairseq import checkpoint_utils
from fairseq.logging import metrics

from ...errors import UserError, causes
from ...threads import torch_threads, width_of
from .. import divergence, stuck
from ..distributed import agreement
from ..distributed.launch import processes_here
from ..opening import opening_line
from . import atomic, exact_resume, reading, saving

log = logging.getLogger(__name__)
ANSWERED = (signal.SIGTERM, signal.SIGUSR1)
ECHO = 3.0  # seconds in which one signal may come twice: from the scheduler, and passed on by torchrun
_first: dict[int, float] = {}  # signal -> when it came
_answered: set[int] = set()  # the process is about to end
_before: dict[int, object] = {}  # signal -> handler, while a training is watched over


class Stopped(Exception):
    """Raised out of a validation when a signal came, and caught where fairseq-train would save."""


def load_checkpoint(original, cfg, trainer, **kwargs):
    """Choose the CPU's threads, describe the run, lock its folder, resume the newest checkpoint, finish its epoch.

    It is the first call that fairseq-train's main makes with its Trainer. Raises a UserError if another training has
    the folder.
    """
    if trainer.device.type == "cpu":
        torch_threads.use(width_of(trainer.cfg.model), processes=processes_here(trainer.cfg))
    logging.getLogger("deepnet_fairseq.training").info(opening_line(trainer))
    saving.begin(cfg)
    trainer.over = None
    if cfg.restore_file == reading.DEFAULT:
        folder, suffix = Path(cfg.save_dir), trainer.checkpoint_suffix
        if path := agreement.broadcast_from_first(lambda: str(reading.other_than_last(folder, suffix) or "")):
            cfg = copy.deepcopy(cfg)
            cfg.restore_file = path.removesuffix(f"{suffix}.pt") + ".pt"  # fairseq adds the suffix
            cfg.finetune_from_model = cfg.continue_once = None
    last = Path(cfg.save_dir) / f"{atomic.LAST}{trainer.checkpoint_suffix}.pt"
    another_run = cfg.finetune_from_model is not None and not last.exists()
    extra_state, epoch_itr = original(cfg, trainer, **kwargs)
    if extra_state is None and cfg.restore_file != reading.DEFAULT:  # named in a YAML: the command line has checked it
        missing = reading.with_suffix(cfg.restore_file, trainer.checkpoint_suffix)
        raise UserError(f"--restore-file {cfg.restore_file}: there is no {missing}")
    if extra_state is not None:
        data_anew = another_run or cfg.reset_dataloader
        extra_state["train_iterator"] = trainer.place if data_anew else trainer.go_on_from(epoch_itr)
        if not (data_anew or cfg.reset_meters or cfg.reset_optimizer):
            watch()  # finishing the epoch may validate
            answer = exact_resume.catch_up(trainer, extra_state)
            trainer.over = answer if answer[1] else None
        if exact_resume.between_epochs(extra_state) and metrics.get_meters("train"):
            metrics.reset_meters("train")
    return extra_state, epoch_itr


def train(original, cfg, trainer, task, epoch_itr):
    """Train one epoch, and return what fairseq's `train` returns: validation losses, and whether the training is over.

    A training that was over when it was started makes no update. One that diverges or is stuck ends the process with
    a line and a status of its own; one whose last save failed ends with a UserError.
    """
    over, ended = trainer.over, True
    try:
        if over is None:
            watch()
            over = _train_or_end(original, cfg, trainer, task, epoch_itr)
        last = epoch_itr.next_epoch_idx > (cfg.optimization.max_epoch or math.inf)
        ended = over[1] or last or trainer.get_lr() <= cfg.optimization.stop_min_lr
        if ended:
            saving.check(trainer)
        return over
    finally:
        if ended:
            unwatch()
            saving.release()


def _train_or_end(original, cfg, trainer, *args):
    status, line = divergence.STATUS, ""
    try:
        if not trainer.stuck.over:
            answer = original(cfg, trainer, *args)
        if not trainer.stuck.over:
            return answer
        status, line = stuck.STATUS, trainer.stuck.headline()
    except divergence.Diverged as error:
        details = error.update, error.kind, error.samples  # the error's traceback would keep the step's tensors
    except (RuntimeError, OSError, EOFError) as error:
        explain_lost_loader(cfg, error)
        raise
    line = line or divergence.headline(trainer, *details)
    if agreement.is_first():
        print(f"{Path(sys.argv[0]).name}: error: {line}", file=sys.stderr)
    agreement.barrier()  # torchrun ends all processes as soon as one has ended
    raise SystemExit(status)


def explain_lost_loader(cfg, error: Exception) -> None:
    """Raise a UserError if the cause of `error` is a data-loading process that was killed.

    torch raises such an error at any place of the training; if the process was handing over a batch, a socket's error.
    """
    frames = traceback.extract_tb(error.__traceback__)
    halfway = not isinstance(error, RuntimeError) and any(frame.name == "_try_get_data" for frame in frames)
    if halfway or any("DataLoader worker (pid" in str(one) for one in causes(error)):
        raise UserError(
            f"--num-workers {cfg.dataset.num_workers}: a process that loads data was killed, often for memory; take "
            f"fewer, and start the training again: it resumes from {cfg.checkpoint.save_dir}"
        ) from error


def validate_and_save(original, cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch):
    """Validate and save after an update, where one is due; end the process with a checkpoint if a signal came.

    Return validation losses, and whether the training is over. A stuck training gets no final save.
    """
    try:
        stop_if_signalled(trainer)
        losses, over = original(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
        return losses, over or trainer.stuck.over
    except Stopped:
        pass  # leave the handler: errors raised below must not be chained to this one
    _save_and_exit(trainer, epoch_itr, end_of_epoch)


def stop_if_signalled(trainer) -> None:
    """Raise Stopped if a signal came, to this process or to another of the training."""
    signalled, trainer.signal = trainer.signal, None
    if _before and (agreement.largest(received(), trainer.device) if signalled is None else signalled):
        raise Stopped


def _save_and_exit(trainer, epoch_itr, end_of_epoch: bool) -> None:
    kind, cfg = agreement.largest(received(), trainer.device), copy.deepcopy(trainer.cfg.checkpoint)
    name, updates = signal.Signals(kind).name, trainer.get_num_updates()
    cfg.no_epoch_checkpoints, cfg.no_last_checkpoints, cfg.save_interval_updates = True, False, 0
    for rule in saving.RULES:
        setattr(cfg, rule, -1)
    exact_resume.unfinished = end_of_epoch
    try:
        checkpoint_utils.save_checkpoint(cfg, trainer, epoch_itr, None)
        saving.check(trainer)
    except UserError as error:
        raise UserError(f"stopped by {name} after update {updates}, and {error}") from None
    finally:
        exact_resume.unfinished = None
    agreement.barrier()  # torchrun ends all processes as soon as one does
    path = Path(cfg.save_dir) / f"{atomic.LAST}{trainer.checkpoint_suffix}.pt"
    saved = "nothing is saved (--no-save)" if cfg.no_save else f"{path} is saved, the same command goes on from it"
    log.info(f"stopped by {name} after update {updates}: {saved}")
    _answered.add(kind)
    raise SystemExit(128 + kind)


def received() -> int:
    """Return the number of the signal that came first, or 0."""
    return next(iter(_first), 0)


def watch() -> None:
    """Catch signals from now on, in the main thread only; a second signal of a kind has its default effect."""
    if not _before and threading.current_thread() is threading.main_thread():
        _first.clear()
        _before.update({kind: signal.signal(kind, _notice) for kind in ANSWERED})


def unwatch() -> None:
    """Restore the previous handlers and forget signals; ignore the one that the end of this process answers.

    When one process has ended, torchrun sends the others the same signal again.
    """
    _first.clear()  # earlier signals do not concern the next training of this process
    while _before:
        kind, handler = _before.popitem()
        signal.signal(kind, signal.SIG_IGN if kind in _answered else handler)


def _notice(kind: int, frame) -> None:
    now = time.monotonic()
    if now - _first.setdefault(kind, now) > ECHO:
        signal.signal(kind, signal.SIG_DFL)
        os.kill(os.getpid(), kind)


def spare_worker(original) -> None:
    """Make a data-loading process ignore signals sent to the whole job; only its parent's SIGTERM ends it.

    Its death would end the training with an error before the checkpoint is saved.
    """
    original()
    if threading.current_thread() is not threading.main_thread():
        return
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_parent, args=(multiprocessing.parent_process().pid,), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    while True:
        if signal.sigwaitinfo({signal.SIGTERM}).si_pid in (parent, os.getpid()):
            os._exit(0)
