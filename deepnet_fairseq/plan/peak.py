"""The process in which check.py measures one training: `python -m deepnet_fairseq.plan.peak FLAGS` prints JSON."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from .. import config
from .flags import parse
from .setting import Setting
from .trial import Trial

UPDATES = 3  # Adam's moments appear in the first, so the second is the first whole one


def main(flags: list[str]) -> None:
    """Prints {"peak", "baseline"} of a training with these flags of `deepnet plan`, in bytes.

    baseline: held once an update of a model of one layer a stack has been made; peak: the most beyond it.
    """
    setting = parse(flags)
    _train(_smallest(setting), 2)
    gc.collect()
    on_gpu = setting.device.name == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        baseline = torch.cuda.memory_allocated()
    else:
        ctypes.CDLL(None).malloc_trim(0)
        baseline = _status("VmRSS")
    _train(setting, UPDATES)
    peak = torch.cuda.max_memory_allocated() if on_gpu else _status("VmHWM")
    print(json.dumps({"peak": peak - baseline, "baseline": baseline}))


def _train(setting: Setting, updates: int) -> None:
    trial = Trial(setting)
    for _ in range(updates):
        trial.step()
    trial.close()


def _smallest(setting: Setting) -> Setting:
    """What brings in all that is imported and set up at the first use."""
    fields = vars(setting.cfg) | dict.fromkeys(setting.layer_fields, 1)
    return replace(
        setting, cfg=config.namespace(**fields), source_vocab=100, target_vocab=100, max_tokens=setting.length
    )


def _status(key: str) -> int:
    """Bytes the kernel knows of this process; VmHWM is the most that was resident since its start."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) * 1024


if __name__ == "__main__":
    main(sys.argv[1:])
