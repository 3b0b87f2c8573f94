"""Averages, threads and places in an epoch, which fairseq loses between two processes.

fairseq saves before an epoch is over: its averages are still to be logged then, and the validation loss to be given to
the learning rate's schedule. Run saves and restores what this module reads and sets.
"""

from __future__ import annotations

import logging
import os

import torch
from fairseq.logging import meters, metrics, progress_bar

from ... import threads
from .. import datasets
from ..distributed import agreement

log = logging.getLogger("deepnet_fairseq.training")
KEY = "deepnet_training"  # in extra_state
CLOCKS = (meters.TimeMeter, meters.StopwatchMeter)


def averages() -> dict[str, float]:
    """Return the epoch's averages so far by name, without those that depend on the clock."""
    values = {}
    for name, meter in (metrics.get_meters("train") or {}).items():
        if isinstance(meter, CLOCKS) or name.startswith("_"):
            continue
        value = metrics.get_meters("train").get_smoothed_value(name)
        values[name] = value.item() if torch.is_tensor(value) else value
    return values


def restore_averages(state: dict) -> None:
    """Restore the averages of a training that was saved between two epochs. state: fairseq's, of all its meters."""
    metrics.load_state_dict(state)
    for meter in metrics.get_meters("default").values():
        if isinstance(meter, meters.TimeMeter):
            meter.reset()  # as fairseq does in the middle of an epoch


def log_averages(trainer, epoch: int, values: dict[str, float]) -> None:
    """Write the line that fairseq-train logs last in an epoch, again if it was written before."""
    common, updates = trainer.cfg.common, trainer.get_num_updates()
    bar = progress_bar.progress_bar(
        [],
        log_format=common.log_format,
        log_file=common.log_file,
        epoch=epoch,
        default_log_format="simple" if common.no_progress_bar else "tqdm",
    )
    wall = metrics.get_meter("default", "wall")
    if agreement.is_first():
        bar.print(values | {"wall": round(wall.elapsed_time if wall else 0)}, tag="train", step=updates)


def keep_threads(before: int | None) -> None:
    """Set torch's threads to those that the training had `before`, and say so where that changes their number.

    before: None for a checkpoint that does not tell it.
    """
    now, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    if before is None or before == now:
        return
    threads.torch_threads.set(min(before, cores))
    if before > cores:
        log.warning(f"the training had {before} threads and goes on with {cores}, as there are cores: other last bits")
        return
    asked = threads.from_environment()
    instead = f", not by {asked}; --reset-meters drops their number, with the run's other counts" if asked else ""
    log.info(f"goes on with {threads.counted(before)}, as it began, for the same bits{instead}")


def between_epochs(extra_state: dict) -> bool:
    """Return whether a checkpoint with that extra state was saved between two epochs."""
    place = extra_state["train_iterator"]  # with more processes than before, the count may be 0 within an epoch
    return not place.get(datasets.BEGUN, place.get("iterations_in_epoch", 1))
