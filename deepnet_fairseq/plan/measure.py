"""How many operations a second this machine makes of a training: some updates of a shallow model of the same widths."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import torch

from .. import config
from ..errors import UserError
from .flops import flops
from .setting import Setting
from .trial import Trial

LAYERS = 4  # of each stack; a layer costs the same at any depth, the optimiser's share included
WARMUP, STEPS = 3, 5


def measured_rate(setting: Setting) -> float:
    """Floating-point operations a second of a training update, on one device of the setting's kind.

    The median of 5 updates through fairseq's Trainer, with the setting's widths, method, batch, precision and loss, and
    4 layers a stack. UserError without such a device.
    """
    shallow = _shallow(setting)
    trial = Trial(shallow)
    try:
        for _ in range(WARMUP):
            trial.step()
        seconds = statistics.median(_seconds(trial) for _ in range(STEPS))
    finally:
        trial.close()
    return flops(shallow).step / seconds


def _shallow(setting: Setting) -> Setting:
    if setting.device.name == "cuda" and not torch.cuda.is_available():
        raise UserError("--measure: there is no GPU here; give --flops, or plan for this CPU with --cpu")
    fields = vars(setting.cfg)
    layers = {name: min(LAYERS, fields[name]) for name in setting.layer_fields}
    return replace(setting, cfg=config.namespace(**(fields | layers)), update_freq=1, gpus=1, sharding="none")


def _seconds(trial: Trial) -> float:
    _synchronise()
    start = time.perf_counter()
    trial.step()
    _synchronise()
    return time.perf_counter() - start


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
