"""Restore what fairseq loses when a training resumes: averages of its log, the number of threads, the end of an epoch.

fairseq saves the checkpoint of an epoch before the epoch is over: its averages are still to be logged then, and the
validation loss to be given to the learning rate's schedule. Run (plugin/run.py) saves and restores what this module
reads and sets.
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
KEY = "deepnet_training"  # in a checkpoint's extra_state: what Run._kept returns
CLOCKS = (meters.TimeMeter, meters.StopwatchMeter)  # fairseq's meters that depend on the clock


def averages() -> dict[str, float]:
    """Return the values of fairseq's "train" meters by name: the epoch's averages so far, without clocks."""
    values = {}
    for name, meter in (metrics.get_meters("train") or {}).items():
        if isinstance(meter, CLOCKS) or name.startswith("_"):  # _: fairseq's own, which are not logged
            continue
        value = metrics.get_meters("train").get_smoothed_value(name)
        values[name] = value.item() if torch.is_tensor(value) else value
    return values


def restore_averages(state: dict) -> None:
    """Restore the averages of a training that was saved between two epochs. state: as metrics.state_dict returns it."""
    metrics.load_state_dict(state)
    for meter in metrics.get_meters("default").values():
        if isinstance(meter, meters.TimeMeter):
            meter.reset()  # as fairseq does in the middle of an epoch


def log_averages(trainer, epoch: int, values: dict[str, float]) -> None:
    """Log the line that fairseq-train logs at the end of an epoch, even if the run before the resume has logged it.

    values: the averages of that epoch, as `averages` returned them when it was saved.
    """
    common = trainer.cfg.common
    updates = trainer.get_num_updates()
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
    """Set torch's number of threads to that before the resume, at most the cores, and log it if this is a change.

    The order of sums, and so the last bits, depend on the number. before: None for a checkpoint that does not have it.
    """
    now = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0))
    if before is None or before == now:
        return
    threads.torch_threads.set(min(before, cores))
    if before > cores:
        log.warning(f"the training had {before} threads and goes on with {cores}, as there are cores: other last bits")
        return

    instead = ""
    asked = threads.from_environment()
    if asked:
        instead = f", not by {asked}; --reset-meters drops their number, with the run's other counts"
    log.info(f"goes on with {threads.threads_in_words(before)}, as it began, for the same bits{instead}")


def between_epochs(extra_state: dict) -> bool:
    """Return whether a checkpoint with that extra state was saved between two epochs.

    The count of iterations in the epoch is 0 then. It may also be 0 within an epoch that was resumed with more
    processes; there the entry datasets.BEGUN is True.
    """
    place = extra_state["train_iterator"]
    has_begun = place.get(datasets.BEGUN, place.get("iterations_in_epoch", 1))
    return not has_begun
