"""A resumed training begins where the saved one was: with what it still had to do after its last update.

fairseq saves before an epoch is over: its averages are still to be logged, and the learning rate to be told the
validation loss. A training that was stopped by a signal may owe the validation and the save of its last update too. And
one that was over makes no update more; fairseq's makes one each time it is started.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from fairseq.logging import metrics, progress_bar

from ..distributed import agreement
from . import process_state


@dataclass
class Place:
    """What a save asks an epoch's iterator, of one whose batches are gone."""

    epoch: int
    ended: bool
    state: dict

    def end_of_epoch(self) -> bool:
        """Was the epoch's last batch trained on?"""
        return self.ended

    def state_dict(self) -> dict:
        """What a checkpoint holds of the iterator."""
        return self.state


def catch_up(trainer, extra_state: dict) -> tuple[list, bool]:
    """Does what is left of the update and the epoch that `extra_state`, a checkpoint's, was saved after.

    Returns fairseq's answer to an epoch: validation losses, and is the training over?
    """
    ours, state = extra_state.get(process_state.KEY) or {}, extra_state["train_iterator"]
    program, cfg, at_end = sys.modules.get("fairseq_cli.train"), trainer.cfg, process_state.between_epochs(extra_state)
    place = Place(state["epoch"] - at_end, at_end, state)
    losses, over = [extra_state.get("val_loss")], _over(trainer)
    process_state.set_schedule(trainer, ours)
    if ours.get("unfinished") is not None and program is not None:
        subsets = cfg.dataset.valid_subset.split(",")
        process_state.averages = ours["averages"]
        losses, over = program.validate_and_save(cfg, trainer, trainer.task, place, subsets, ours["unfinished"])
        process_state.averages = {}
    if ours.get("averages") and (at_end or over):
        _log_averages(trainer, place.epoch, ours["averages"])
    if at_end and not over:
        trainer.lr_step(place.epoch, losses[0])
    return losses, over


def _over(trainer) -> bool:
    """By the run's limits of today; the limit of epochs is fairseq-train's own."""
    optimization, patience = trainer.cfg.optimization, trainer.cfg.checkpoint.patience
    misses = getattr(process_state.early_stopping(), "num_runs", 0)
    return (
        trainer.get_num_updates() >= (optimization.max_update or math.inf)
        or trainer.cumulative_training_time() / 3600 > (optimization.stop_time_hours or math.inf)
        or misses >= (patience if patience > 0 else math.inf)
    )


def _log_averages(trainer, epoch: int, averages: dict) -> None:
    """The line that fairseq-train logs last in an epoch; once more if it did come to that."""
    common, updates = trainer.cfg.common, trainer.get_num_updates()
    bar = progress_bar.progress_bar(
        [], log_format=common.log_format, log_file=common.log_file, epoch=epoch,
        default_log_format="simple" if common.no_progress_bar else "tqdm",
    )  # fmt: skip
    wall = metrics.get_meter("default", "wall")
    if agreement.is_first():
        bar.print(averages | {"wall": round(wall.elapsed_time if wall else 0)}, tag="train", step=updates)
