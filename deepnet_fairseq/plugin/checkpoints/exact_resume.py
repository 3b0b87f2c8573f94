"""A resumed training goes the way of one that was left alone: what fairseq forgets between two processes.

It makes the batches once a process, with a seed of the epoch the process begins in, and shuffles them anew each epoch:
resumed in a later epoch than the first, a run has other batches. It keeps averages, misses and counters in the process
only, rebuilds float32 weights from those in half precision, which have lost the lower bits, and saves before an epoch
is over: its averages are still to be logged, and the learning rate to be told the validation loss. A training that was
stopped by a signal may owe the validation and the save of its last update too. And one that was over makes no update
more; fairseq's makes one each time it is started.
"""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import torch
from fairseq.logging import meters, metrics, progress_bar
from fairseq.trainer import Trainer
from torch import Tensor

from ..distributed import agreement
from ..optimisers.deepnet_adam import HalfPrecisionOptimizer

KEY = "deepnet_training"  # in extra_state
WEIGHTS, SCALER = "fp32_params", "loss_scaler"  # in the state of an optimiser for half precision, beside loss_scale
CLOCKS = (meters.TimeMeter, meters.StopwatchMeter)
unfinished: bool | None = None  # set while a training is saved that a signal stopped: was it the end of an epoch?
averages: dict = {}  # of the epoch, as they were before the resume; set while what was left over is done


def batches_as_before(original, task, *args, **kwargs):
    """Makes the first training batches after a resume as in the epoch that made those of the training it continues."""
    now = kwargs.get("epoch")
    epoch, seed_moves = vars(task).pop("make_as_in", (None, False))
    if epoch is None or now is None or kwargs.get("disable_iterator_cache") or kwargs.get("update_epoch_batch_itr"):
        epoch = now
    elif seed_moves:
        kwargs["seed"] += epoch - now
    iterator = original(task, *args, **kwargs | ({} if now is None else {"epoch": epoch}))
    if not hasattr(iterator, "made_in"):
        iterator.made_in, iterator.epoch = epoch, now if now is not None else iterator.epoch
    return iterator


def _early_stopping():
    """The function of fairseq-train that counts validations without progress, in attributes of its own, if loaded."""
    return getattr(sys.modules.get("fairseq_cli.train"), "should_stop_early", None)


def save_forgotten(original, trainer: Trainer, filename, extra_state):
    """Beside fairseq's extra state, under KEY: patience, the schedule's counts, averages, where batches were made."""
    patience, schedule = _early_stopping(), getattr(trainer.lr_scheduler, "lr_scheduler", None)
    batches = trainer.task.dataset_to_epoch_iter.get(trainer.task.datasets.get(trainer.cfg.dataset.train_subset))
    ours = {
        "patience": {name: getattr(patience, name) for name in ("best", "num_runs") if hasattr(patience, name)},
        # torch's scheduler inside reduce_lr_on_plateau: fairseq keeps its best, not how long that was ago
        "lr_scheduler": schedule.state_dict() if hasattr(schedule, "state_dict") else None,
        # how many updates ago the average was made, under --ema-update-freq
        "ema_counter": trainer.ema.update_freq_counter if trainer.cfg.ema.store_ema else None,
        "batches_made_in": getattr(batches, "made_in", None),  # None if each epoch makes its own
        "unfinished": unfinished,
        "averages": averages | _averages(),
    }
    return original(trainer, filename, extra_state | {KEY: ours})


def _averages() -> dict:
    """Of the epoch so far, by name; without what depends on the clock."""
    found = metrics.get_meters("train") or {}
    values = {name: found.get_smoothed_value(name) for name, meter in found.items() if not isinstance(meter, CLOCKS)}
    return {name: value.item() if torch.is_tensor(value) else value for name, value in values.items() if name[0] != "_"}


def load_forgotten(original, trainer: Trainer, filename, reset_optimizer=False, reset_lr_scheduler=False,
                   optimizer_overrides=None, reset_meters=False):  # fmt: skip
    """What save_forgotten saved, and the averages of a training that was saved between two epochs."""
    extra_state = original(
        trainer, filename, reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters=reset_meters
    )
    if not extra_state or reset_meters:
        return extra_state
    if between_epochs(extra_state) and "metrics" in extra_state:  # where fairseq starts all averages anew
        metrics.load_state_dict(extra_state["metrics"])
        for meter in metrics.get_meters("default").values():
            if isinstance(meter, meters.TimeMeter):
                meter.reset()  # as fairseq does in the middle of one
    ours, patience = extra_state.get(KEY), _early_stopping()
    if not ours:
        return extra_state
    trainer.task.make_as_in = (ours["batches_made_in"], trainer.cfg.dataset.update_ordered_indices_seed)
    if patience is not None:
        for name in ("best", "num_runs"):
            vars(patience).pop(name, None)
        vars(patience).update(ours["patience"])
    if ours["ema_counter"] is not None and trainer.cfg.ema.store_ema:
        trainer.ema.update_freq_counter = ours["ema_counter"]
    return extra_state


def between_epochs(extra_state: dict) -> bool:
    """Was it saved between two epochs?"""
    return extra_state["train_iterator"].get("iterations_in_epoch") == 0


def weights(optimizer) -> list[Tensor]:
    """The float32 weights of an optimiser for half precision, in its parameters' order and shapes; [] without any."""
    if isinstance(optimizer, HalfPrecisionOptimizer):
        return optimizer.float32_weights()
    params, half = getattr(optimizer, "fp32_params", None), getattr(optimizer, "fp16_params", ())
    if params is None:
        return []
    if not isinstance(params, dict):
        return [param.data for param in params]
    # by device, all of its parameters in one
    sizes = {device: [param.numel() for param in half if param.device.index == device] for device in params}
    parts = {device: iter(flat.data[: sum(sizes[device])].split(sizes[device])) for device, flat in params.items()}
    return [next(parts[param.device.index]).view(param.shape) for param in half]


def state_with_weights(original, optimizer) -> dict:
    """With the float32 weights, and when the loss scale was changed."""
    state = original(optimizer)
    if values := weights(optimizer):
        state[WEIGHTS] = values
    if counts := _counts(getattr(optimizer, "scaler", None)):
        state[SCALER] = counts
    return state


def _counts(scaler) -> dict:
    """When the scale was last changed, how many updates overflowed since: torch's scaler tells, fairseq's has them."""
    if scaler is None:
        return {}
    if hasattr(scaler, "state_dict"):
        return scaler.state_dict()
    return {name: value for name, value in vars(scaler).items() if name.startswith("_")}


def load_with_weights(original, optimizer, state_dict, optimizer_overrides=None) -> None:
    """The float32 weights come back if they are those of the weights in half precision."""
    original(optimizer, state_dict, optimizer_overrides)
    scaler, counts = getattr(optimizer, "scaler", None), state_dict.get(SCALER) or {}
    if counts and hasattr(scaler, "load_state_dict"):
        scaler.load_state_dict(counts)
    elif counts and scaler is not None and counts.keys() == _counts(scaler).keys():
        vars(scaler).update(counts)
    params, saved = getattr(optimizer, "fp16_params", []), state_dict.get(WEIGHTS) or []
    if getattr(optimizer, "fp32_params", None) is None or len(params) != len(saved):
        return
    if not all(torch.equal(value.to(param), param.data) for param, value in zip(params, saved, strict=True)):
        return  # not what was loaded in half precision: of another model, or a part of one
    if isinstance(optimizer, HalfPrecisionOptimizer):
        optimizer.load_float32_weights(saved)
    else:
        with torch.no_grad():
            ours = weights(optimizer)
            torch._foreach_copy_(ours, [loaded.to(value.device) for value, loaded in zip(ours, saved, strict=True)])


def catch_up(trainer, extra_state: dict) -> tuple[list, bool]:
    """Does what is left of the update and the epoch that `extra_state`, a checkpoint's, was saved after.

    Returns fairseq's answer to an epoch: validation losses, and is the training over?
    """
    global averages
    ours, state = extra_state.get(KEY) or {}, extra_state["train_iterator"]
    program, cfg, at_end = sys.modules.get("fairseq_cli.train"), trainer.cfg, between_epochs(extra_state)
    epoch = state["epoch"] - at_end
    # what a save asks an epoch's iterator, of one whose batches are gone
    place = SimpleNamespace(epoch=epoch, end_of_epoch=lambda: at_end, state_dict=lambda: state)
    losses, over = [extra_state.get("val_loss")], _over(trainer)
    schedule = getattr(trainer.lr_scheduler, "lr_scheduler", None)  # torch's, which fairseq moves when it resumes
    if ours.get("lr_scheduler") and hasattr(schedule, "load_state_dict") and not cfg.checkpoint.reset_lr_scheduler:
        schedule.load_state_dict(ours["lr_scheduler"])
    if ours.get("unfinished") is not None and program is not None:
        subsets, averages = cfg.dataset.valid_subset.split(","), ours["averages"]
        losses, over = program.validate_and_save(cfg, trainer, trainer.task, place, subsets, ours["unfinished"])
        averages = {}
    if ours.get("averages") and (at_end or over):
        _log_averages(trainer, epoch, ours["averages"])
    if at_end and not over:
        trainer.lr_step(epoch, losses[0])
    return losses, over


def _over(trainer) -> bool:
    """By the run's limits of today; the limit of epochs is fairseq-train's own."""
    optimization, patience = trainer.cfg.optimization, trainer.cfg.checkpoint.patience
    misses = getattr(_early_stopping(), "num_runs", 0)
    return (
        trainer.get_num_updates() >= (optimization.max_update or math.inf)
        or trainer.cumulative_training_time() / 3600 > (optimization.stop_time_hours or math.inf)
        or misses >= (patience if patience > 0 else math.inf)
    )


def _log_averages(trainer, epoch: int, found: dict) -> None:
    """The line that fairseq-train logs last in an epoch; once more if it did come to that."""
    common, updates = trainer.cfg.common, trainer.get_num_updates()
    bar = progress_bar.progress_bar(
        [], log_format=common.log_format, log_file=common.log_file, epoch=epoch,
        default_log_format="simple" if common.no_progress_bar else "tqdm",
    )  # fmt: skip
    wall = metrics.get_meter("default", "wall")
    if agreement.is_first():
        bar.print(found | {"wall": round(wall.elapsed_time if wall else 0)}, tag="train", step=updates)
