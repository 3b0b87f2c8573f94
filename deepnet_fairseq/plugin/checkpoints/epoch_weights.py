"""`--epoch-weights`: keep only the weights that an average of checkpoints reads.

fairseq keeps a whole checkpoint of each epoch, most of which is the optimiser's state, and a copy of the best one.
Where an epoch is short, 400 are written of which ten are read. Here an epoch writes only its weights, as weightsN.pt,
and only if they may be among those that are averaged; --save-interval-updates saves the state that a resume needs.

The flag is last:N for the weights of the last N epochs, or A-B for those from epoch A to B.
"""

from __future__ import annotations

import math
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...errors import UserError
from . import atomic

WHICH = re.compile(r"last:([1-9]\d{0,8})|([1-9]\d{0,8})-([1-9]\d{0,8})")  # groups: N, A, B
LARGE_EXTRAS = ("ema", "ema_fp32_params")  # in a checkpoint's extra_state, as large as the weights


class WeightsFile(NamedTuple):
    """File for the weights of an epoch, and the flags by which it is written."""

    path: Path
    flag: str  # value of --epoch-weights
    suffix: str  # value of --checkpoint-suffix, "" without it


def check_epoch_weights(flag: str | None) -> None:
    """Raise a UserError unless the flag is None, last:N or A-B with A <= B."""
    if flag is None:
        return
    match = WHICH.fullmatch(flag)
    if not match or (match[2] and int(match[2]) > int(match[3])):
        raise UserError(f"--epoch-weights {flag}", "give last:N for the last N epochs, or A-B for those from A to B")


def may_be_wanted(flag: str, epoch: int, updates: int, max_epoch: int, max_update: int) -> bool:
    """Return whether the weights at the end of `epoch` may be among those that --epoch-weights asks for.

    flag: its value, last:N or A-B; epoch: from 1; updates: made so far; max_epoch, max_update: limits of the training,
    0 for none. If max_update ends it, the last epoch is predicted from the number of updates that an epoch has had so
    far. For last:N the answer is True for one epoch more than N, because the prediction may be off by one; and always
    if there is no limit.
    """
    match = WHICH.fullmatch(flag)
    if match[2]:  # A-B
        return int(match[2]) <= epoch <= int(match[3])

    last_epoch = math.inf  # with a fraction if it is cut short; stays infinite if nothing limits the training
    if max_update > 0 and updates > 0:
        last_epoch = max_update * epoch / updates
    if max_epoch:
        last_epoch = min(max_epoch, last_epoch)
    if last_epoch == math.inf:
        return True
    number_of_epochs = int(match[1])  # N
    return epoch > math.floor(last_epoch) - (number_of_epochs + 1)


def weights_file(cfg, flag: str, epoch: int, suffix: str) -> WeightsFile:
    """Return the file for the weights of an epoch.

    cfg: the config's section for checkpoints; flag, suffix: see WeightsFile.
    """
    return WeightsFile(Path(cfg.save_dir) / f"weights{epoch}{suffix}.pt", flag, suffix)


def surely_goes_on(cfg, limits, epoch: int, updates: int) -> bool:
    """Return whether no flag of fairseq's ends the training after `epoch`, and --save-interval-updates saves it.

    The checkpoint of the epoch is not needed then. cfg: the config's section for checkpoints; limits: the config's
    section for optimisation, which says when the training ends; updates: made so far.
    """
    # the early ends: without their flags these settings are -1, 0 and -1
    may_end_early = cfg.patience > 0 or limits.stop_time_hours > 0 or limits.stop_min_lr >= 0
    max_epoch = limits.max_epoch or math.inf  # 0 for no limit, as for updates
    max_update = limits.max_update or math.inf
    at_the_end = epoch >= max_epoch or updates >= max_update
    return cfg.save_interval_updates > 0 and not may_end_early and not at_the_end


def write_weights(state: dict, file: WeightsFile) -> None:
    """Write the weights of a checkpoint to a file of their own, and remove older files that last:N no longer keeps.

    state: content of the checkpoint, fairseq's dict.
    """
    atomic.save(weights_of(state), file.path)
    remove_old(file.path.parent, file.flag, file.suffix)


def weights_of(state: dict) -> dict:
    """Return a checkpoint's content without the large parts that only further training needs."""
    extra = {key: value for key, value in state["extra_state"].items() if key not in LARGE_EXTRAS}
    return state | {"last_optimizer_state": None, "extra_state": extra}


def remove_old(folder: Path, flag: str, suffix: str) -> None:
    """Remove all but the last N files of weights in a folder, for the flag last:N; with A-B remove nothing.

    flag, suffix: see WeightsFile; files with another suffix are left alone.
    """
    kept = WHICH.fullmatch(flag)[1]
    if not kept:
        return
    file_name = re.compile(rf"weights(\d+){re.escape(suffix)}\.pt")
    files = []  # (epoch, path)
    for path in folder.iterdir():
        match = file_name.fullmatch(path.name)
        if match:
            files.append((int(match[1]), path))

    files.sort()
    for _epoch, path in files[: -int(kept)]:
        with suppress(OSError):  # a file that stays only takes space
            os.remove(path)
