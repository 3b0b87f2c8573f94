"""Save and restore the state that fairseq loses between processes: a resumed training goes on bit for bit.

fairseq keeps averages, patience and counters in the process only. It rebuilds float32 weights from those in half
precision, which have lost the lower bits. It saves before an epoch is over: the epoch's averages are still to be
logged then, and the validation loss to be given to the learning rate's schedule. A training that a signal has stopped
may still have to validate and save its last update.
"""

from __future__ import annotations

import logging
import math
import os
from types import SimpleNamespace

import torch
from fairseq.logging import meters, metrics, progress_bar
from fairseq.trainer import Trainer
from torch import Tensor

from ... import threads
from .. import datasets
from ..distributed import agreement

log = logging.getLogger("deepnet_fairseq.training")
KEY = "deepnet_training"  # in extra_state
WEIGHTS, SCALER = "fp32_params", "loss_scaler"  # in the state of an optimiser for half precision, beside loss_scale
CLOCKS = (meters.TimeMeter, meters.StopwatchMeter)
program: dict = {}  # the namespace in which fairseq-train's main runs, set by patches.attach
unfinished: bool | None = None  # set while saving after a signal: whether an epoch had ended
averages: dict = {}  # the epoch's averages from before the resume; set while the interrupted update is finished


def _early_stopping():
    """Return fairseq-train's function that counts validations without progress, in attributes of its own, or None."""
    return program.get("should_stop_early")


def forgotten(trainer: Trainer) -> dict:
    """Return the state to save beside fairseq's: patience, counts of the schedule, averages, the batches' epoch."""
    patience, schedule = _early_stopping(), getattr(trainer.lr_scheduler, "lr_scheduler", None)
    batches = trainer.task.dataset_to_epoch_iter.get(trainer.task.datasets.get(trainer.cfg.dataset.train_subset))
    return {
        "patience": {name: getattr(patience, name) for name in ("best", "num_runs") if hasattr(patience, name)},
        # torch's scheduler inside reduce_lr_on_plateau: fairseq keeps its best value, not its age
        "lr_scheduler": schedule.state_dict() if hasattr(schedule, "state_dict") else None,
        # how many updates ago the average was made, under --ema-update-freq
        "ema_counter": trainer.ema.update_freq_counter if trainer.cfg.ema.store_ema else None,
        "batches_made_in": getattr(batches, "made_in", None),  # None if each epoch makes its own batches
        "unfinished": unfinished,
        "averages": averages | _averages(),
        # sums of several threads are rounded in another order than those of one
        "threads": torch.get_num_threads() if trainer.device.type == "cpu" else None,
    }


def _averages() -> dict:
    """Return the epoch's averages so far by name, without those that depend on the clock."""
    logged = metrics.get_meters("train") or {}
    values = {name: logged.get_smoothed_value(name) for name, meter in logged.items() if not isinstance(meter, CLOCKS)}
    return {name: value.item() if torch.is_tensor(value) else value for name, value in values.items() if name[0] != "_"}


def remember(trainer: Trainer, extra_state: dict) -> None:
    """Restore what `forgotten` returned, and the averages of a training that was saved between two epochs."""
    if between_epochs(extra_state) and "metrics" in extra_state:  # where fairseq starts all averages anew
        metrics.load_state_dict(extra_state["metrics"])
        for meter in metrics.get_meters("default").values():
            if isinstance(meter, meters.TimeMeter):
                meter.reset()  # as fairseq does in the middle of an epoch
    ours, patience, world = extra_state.get(KEY), _early_stopping(), trainer.data_parallel_world_size
    if not ours:
        return
    trainer.make_as_in = ours["batches_made_in"]
    if trainer.device.type == "cpu" and extra_state["train_iterator"].get(datasets.PROCESSES) in (None, world):
        keep_threads(ours.get("threads"))
    if patience is not None:
        for name in ("best", "num_runs"):
            vars(patience).pop(name, None)
        vars(patience).update(ours["patience"])
    if ours["ema_counter"] is not None and trainer.cfg.ema.store_ema:
        trainer.ema.update_freq_counter = ours["ema_counter"]


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


def weights(optimizer) -> list[Tensor]:
    """Return an optimiser's float32 weights in its parameters' order and shapes; [] if it has none."""
    if hasattr(optimizer, "float32_weights"):
        return optimizer.float32_weights()
    params, half = getattr(optimizer, "fp32_params", None), getattr(optimizer, "fp16_params", ())
    if params is None:
        return []
    if not isinstance(params, dict):
        return [param.data for param in params]
    [flat], sizes = params.values(), [param.numel() for param in half]  # one device: all weights are in one tensor
    parts = flat.data[: sum(sizes)].split(sizes)
    return [part.view(param.shape) for part, param in zip(parts, half, strict=True)]


def with_weights(optimizer, state: dict) -> dict:
    """Add the float32 weights, and when the loss scale was changed, to an optimiser's state."""
    if values := weights(optimizer):
        state[WEIGHTS] = values
    if counts := _counts(getattr(optimizer, "scaler", None)):
        state[SCALER] = counts
    return state


def _counts(scaler) -> dict:
    """Return when the loss scale was last changed and how many updates overflowed since."""
    if scaler is None:
        return {}
    if hasattr(scaler, "state_dict"):
        return scaler.state_dict()
    return {name: value for name, value in vars(scaler).items() if name.startswith("_")}


def load_weights(optimizer, state_dict: dict) -> None:
    """Restore what `with_weights` added, if the float32 weights round to those that were loaded in half precision."""
    scaler, counts = getattr(optimizer, "scaler", None), state_dict.get(SCALER) or {}
    if counts and hasattr(scaler, "load_state_dict"):
        scaler.load_state_dict(counts)
    elif counts and scaler is not None and counts.keys() == _counts(scaler).keys():
        vars(scaler).update(counts)
    params, saved = getattr(optimizer, "fp16_params", []), state_dict.get(WEIGHTS) or []
    if getattr(optimizer, "fp32_params", None) is None or len(params) != len(saved):
        return
    if not all(torch.equal(value.to(param), param.data) for param, value in zip(params, saved, strict=True)):
        return  # they differ from the loaded half precision: another model's, or a part of one
    if hasattr(optimizer, "load_float32_weights"):
        optimizer.load_float32_weights(saved)
    else:
        with torch.no_grad():
            ours = weights(optimizer)
            torch._foreach_copy_(ours, [loaded.to(value.device) for value, loaded in zip(ours, saved, strict=True)])


def catch_up(trainer, extra_state: dict) -> tuple[list, bool]:
    """Finish the update and the epoch after which a checkpoint with that extra state was saved.

    Return the validation losses and whether the training is over, as fairseq's `train` does for an epoch.
    """
    global averages
    ours, state = extra_state.get(KEY) or {}, extra_state["train_iterator"]
    cfg, at_end = trainer.cfg, between_epochs(extra_state)
    epoch = state["epoch"] - at_end
    # the attributes of an epoch's iterator that a save reads, for one whose batches are used up
    place = SimpleNamespace(epoch=epoch, end_of_epoch=lambda: at_end, state_dict=lambda: state)
    losses, over = [extra_state.get("val_loss")], _over(trainer)
    schedule = getattr(trainer.lr_scheduler, "lr_scheduler", None)  # torch's, which fairseq moves when it resumes
    if ours.get("lr_scheduler") and hasattr(schedule, "load_state_dict") and not cfg.checkpoint.reset_lr_scheduler:
        schedule.load_state_dict(ours["lr_scheduler"])
    if ours.get("unfinished") is not None and program:
        subsets, averages = cfg.dataset.valid_subset.split(","), ours["averages"]
        losses, over = program["validate_and_save"](cfg, trainer, trainer.task, place, subsets, ours["unfinished"])
        averages = {}
    if ours.get("averages") and (at_end or over):
        _log_averages(trainer, epoch, ours["averages"])
    if at_end and not over:
        trainer.lr_step(epoch, losses[0])
    return losses, over


def _over(trainer) -> bool:
    """Return whether the run's present limits are reached; fairseq-train checks the limit of epochs itself."""
    optimization, patience = trainer.cfg.optimization, trainer.cfg.checkpoint.patience
    misses = getattr(_early_stopping(), "num_runs", 0)
    return (
        trainer.get_num_updates() >= (optimization.max_update or math.inf)
        or trainer.cumulative_training_time() / 3600 > (optimization.stop_time_hours or math.inf)
        or misses >= (patience if patience > 0 else math.inf)
    )


def _log_averages(trainer, epoch: int, averages: dict) -> None:
    """Write the line that fairseq-train logs last in an epoch, again if it was written before."""
    common, updates = trainer.cfg.common, trainer.get_num_updates()
    bar = progress_bar.progress_bar(
        [], log_format=common.log_format, log_file=common.log_file, epoch=epoch,
        default_log_format="simple" if common.no_progress_bar else "tqdm",
    )  # fmt: skip
    wall = metrics.get_meter("default", "wall")
    if agreement.is_first():
        bar.print(averages | {"wall": round(wall.elapsed_time if wall else 0)}, tag="train", step=updates)
