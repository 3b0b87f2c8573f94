"""What fairseq keeps in the process only, so that a resumed run would go another way than one that was left alone."""

from __future__ import annotations

import sys

import torch
from fairseq.logging import meters, metrics
from fairseq.trainer import Trainer

from ..compat.wrapping import wrap
from . import data_order

KEY = "deepnet_training"  # in extra_state
unfinished: bool | None = None  # see catching_up.py; set while a stopped training is saved
averages: dict = {}  # of the epoch, as they were before the resume; set while what was left over is done


def install() -> None:
    """Patches Trainer.save_checkpoint and load_checkpoint; may be called again."""
    wrap(Trainer, "save_checkpoint", _save)
    wrap(Trainer, "load_checkpoint", _load)


def early_stopping():
    """The function of fairseq-train that counts validations without progress, in attributes of its own, if loaded."""
    return getattr(sys.modules.get("fairseq_cli.train"), "should_stop_early", None)


def _save(original, trainer: Trainer, filename, extra_state):
    patience, schedule = early_stopping(), getattr(trainer.lr_scheduler, "lr_scheduler", None)
    ours = {
        "patience": {name: getattr(patience, name) for name in ("best", "num_runs") if hasattr(patience, name)},
        # torch's scheduler inside reduce_lr_on_plateau: fairseq keeps its best, not how long that was ago
        "lr_scheduler": schedule.state_dict() if hasattr(schedule, "state_dict") else None,
        # how many updates ago the average was made, under --ema-update-freq
        "ema_counter": trainer.ema.update_freq_counter if trainer.cfg.ema.store_ema else None,
        "batches_made_in": data_order.made_in(trainer),
        "unfinished": unfinished,
        "averages": averages | _averages(),
    }
    return original(trainer, filename, extra_state | {KEY: ours})


def _load(original, trainer: Trainer, filename, reset_optimizer=False, reset_lr_scheduler=False,
          optimizer_overrides=None, reset_meters=False):  # fmt: skip
    extra_state = original(
        trainer, filename, reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters=reset_meters
    )
    if not extra_state or reset_meters:
        return extra_state
    _go_on_averaging(extra_state)
    ours = extra_state.get(KEY)
    if not ours:
        return extra_state
    data_order.make_as_in(trainer, ours["batches_made_in"])
    patience = early_stopping()
    if patience is not None:
        for name in ("best", "num_runs"):
            vars(patience).pop(name, None)
        vars(patience).update(ours["patience"])
    if ours["ema_counter"] is not None and trainer.cfg.ema.store_ema:
        trainer.ema.update_freq_counter = ours["ema_counter"]
    return extra_state


def set_schedule(trainer: Trainer, ours: dict) -> None:
    """Gives torch's scheduler the state that a checkpoint holds (`ours`), for fairseq moves it when it resumes."""
    schedule = getattr(trainer.lr_scheduler, "lr_scheduler", None)
    if (
        ours.get("lr_scheduler")
        and hasattr(schedule, "load_state_dict")
        and not trainer.cfg.checkpoint.reset_lr_scheduler
    ):
        schedule.load_state_dict(ours["lr_scheduler"])


def _go_on_averaging(extra_state: dict) -> None:
    """At the beginning of an epoch fairseq starts all averages anew; left alone, a run goes on with all but `train`."""
    if between_epochs(extra_state) and "metrics" in extra_state:
        metrics.load_state_dict(extra_state["metrics"])
        for meter in metrics.get_meters("default").values():
            if isinstance(meter, meters.TimeMeter):
                meter.reset()  # as fairseq does in the middle of one


def between_epochs(extra_state: dict) -> bool:
    """Was it saved between two epochs?"""
    return extra_state["train_iterator"].get("iterations_in_epoch") == 0


def _averages() -> dict:
    """Of the epoch so far, by name; without what depends on the clock."""
    found = metrics.get_meters("train") or {}
    clocks = (meters.TimeMeter, meters.StopwatchMeter)
    values = {name: found.get_smoothed_value(name) for name, meter in found.items() if not isinstance(meter, clocks)}
    return {name: value.item() if torch.is_tensor(value) else value for name, value in values.items() if name[0] != "_"}
