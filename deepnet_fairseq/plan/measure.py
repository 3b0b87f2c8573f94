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
from .tape import DEVICES
from .trial import Trial

LAYERS = 4  # of each stack; a layer costs the same at any depth, the optimiser's share included
WARMUP, STEPS = 3, 5


def measured_rate(setting: Setting) -> float:
    """Floating-point operations a second of a training update of 4L-4L on one GPU, or the CPU where there is none:
    the median of 5 updates through fairseq's Trainer with the setting's widths, method, batch, precision and loss."""
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
    on_gpu = torch.cuda.is_available() and setting.device.name == "cuda"
    if not on_gpu and setting.precision.name.endswith("fp16"):
        raise UserError("--measure: half precision --fp16 needs a GPU, and there is none; give --flops")
    layers = {
        f"{stack}_layers": min(LAYERS, getattr(setting.cfg, f"{stack}_layers")) for stack in ("encoder", "decoder")
    }
    cfg = config.namespace(**(vars(setting.cfg) | layers))
    return replace(
        setting, cfg=cfg, update_freq=1, gpus=1, sharding="none", device=DEVICES["cuda" if on_gpu else "cpu"]
    )


def _seconds(trial: Trial) -> float:
    _synchronise()
    start = time.perf_counter()
    trial.step()
    _synchronise()
    return time.perf_counter() - start


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
