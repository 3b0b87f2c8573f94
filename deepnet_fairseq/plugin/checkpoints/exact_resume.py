"""Restore what fairseq loses when a training resumes: averages of its log, the number of threads, the end of an epoch.

fairseq saves the checkpoint of an epoch before the epoch is over: its averages are still to be logged then, and the
validation loss to be given to the learning rate's schedule. Run (plugin/run.py) saves what this module reads, and calls
it to restore that.
"""

from __future__ import annotations

import logging
import os

import torch
from fairseq.logging import meters, metrics, progress_bar

from ... import threads
from ...wording import counted
from .. import datasets
from ..distributed import agreement

log = logging.getLogger("deepnet_fairseq.training")
KEY = "deepnet_training"  # in a checkpoint's extra_state: what Run._process_state returns
CLOCKS = (meters.TimeMeter, meters.StopwatchMeter)  # fairseq's meters that depend on the clock


def averages() -> dict[str, float]:
    """Return the values of fairseq's "train" meters by name: the epoch's averages so far.

    Meters that depend on the clock, such as updates a second, are left out.
    """
    values = {}
    for name, meter in (metrics.get_meters("train") or {}).items():
        if isinstance(meter, CLOCKS) or name.startswith("_"):  # fairseq does not log those with _
            continue
        value = metrics.get_meters("train").get_smoothed_value(name)
        values[name] = value.item() if torch.is_tensor(value) else value
    return values


def restore_averages(state: dict) -> None:
    """Restore the averages of a training that was saved between two epochs.

    state: the meters, as fairseq's metrics.state_dict returns them.
    """
    metrics.load_state_dict(state)
    for meter in metrics.get_meters("default").values():
        if isinstance(meter, meters.TimeMeter):
            meter.reset()  # it began in the process that has saved it


def log_averages(trainer, epoch: int, values: dict[str, float]) -> None:
    """Log the line that fairseq-train logs at the end of an epoch, even if the run before the resume has logged it.

    epoch: from 1; values: the averages of that epoch, as `averages` returned them when it was saved. "wall", the
    seconds since the training began, is not among them and is read anew.
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
    """Set torch's number of threads to that of the training before the resume, and log it if this is a change.

    The order of sums, and so their last bits, depend on the number. before: the number of threads in the checkpoint,
    None for a checkpoint without it; no more threads are set than there are cores.
    """
    now = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0))
    if before is None or before == now:
        return
    threads.torch_threads.set(min(before, cores))
    if before > cores:
        log.warning(
            f"the training had {counted(before, 'thread')} and goes on with {cores}, one for each core: other last bits"
        )
        return

    instead = ""  # end of the line below, if the environment asks for another number
    asked = threads.from_environment()
    if asked:
        instead = f", not by {asked}; --reset-meters drops their number, with the run's other counts"
    log.info(f"goes on with {counted(before, 'thread')}, as it began, for the same bits{instead}")


def between_epochs(extra_state: dict) -> bool:
    """Return whether a checkpoint was saved between two epochs.

    extra_state: the checkpoint's. "train_iterator" in it is the place in the epoch; "iterations_in_epoch" there counts
    the batches done, 0 between two epochs. After a resume with more processes it may be rounded to 0 within an epoch
    too, which the entry datasets.BEGUN tells (True).
    """
    place = extra_state["train_iterator"]
    has_begun = place.get(datasets.BEGUN, place.get("iterations_in_epoch", 1))  # without a count: within an epoch
    return not has_begun
