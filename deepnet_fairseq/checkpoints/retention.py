"""--keep-interval-updates, --keep-last-epochs and --keep-best-checkpoints, for saves in the background.

fairseq removes old checkpoints right after it has begun a new one; here they go when that is whole.
"""

from __future__ import annotations

import os
from contextlib import suppress

from fairseq.checkpoint_utils import checkpoint_paths

RULES = ("keep_interval_updates", "keep_last_epochs", "keep_best_checkpoints")


def remove(cfg, suffix: str, mid_epoch: bool) -> None:
    """Removes what the three flags keep no longer.

    cfg: fairseq's config of checkpoints; suffix: of this process's files; mid_epoch: was the save one between two ends
    of an epoch?
    """
    gone = []
    if mid_epoch and cfg.keep_interval_updates > 0:
        found = checkpoint_paths(cfg.save_dir, rf"checkpoint_\d+_(\d+){suffix}\.pt", keep_match=True)
        every = cfg.keep_interval_updates_pattern
        gone += [path for path, update in found if every == -1 or update % every != 0][cfg.keep_interval_updates :]
    if cfg.keep_last_epochs > 0:
        gone += checkpoint_paths(cfg.save_dir, rf"checkpoint(\d+){suffix}\.pt")[cfg.keep_last_epochs :]
    if cfg.keep_best_checkpoints > 0:
        best = rf"checkpoint\.best_{cfg.best_checkpoint_metric}_(\d+\.?\d*){suffix}\.pt"
        ranked = checkpoint_paths(cfg.save_dir, best)
        gone += ranked[:: 1 if cfg.maximize_best_checkpoint_metric else -1][cfg.keep_best_checkpoints :]
    for path in gone:
        with suppress(OSError):
            os.remove(path)
