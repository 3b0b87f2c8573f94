"""fairseq's training ends with a line and status 3 where a loss, a gradient or a weight is not finite.

fairseq answers a FloatingPointError by writing crash.pt and training on the batch once more under its NanDetector. The
file is as large as a checkpoint, written when the disk is fullest, and nothing reads it; the NanDetector prints a page.
Here search.py names the first layer instead.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from ..distributed import agreement
from . import FLOOR, GRADIENTS, LOSS, STATUS, WEIGHTS, Diverged
from .search import all_finite, repeat

SAMPLES = "deepnet_samples"  # attribute of a trainer: the batches of its last update


def watch_step(original, trainer, samples, *args, **kwargs):
    """Make an update; raise Diverged if its loss is not finite."""
    vars(trainer)[SAMPLES] = samples
    before = trainer.get_num_updates()
    logged = original(trainer, samples, *args, **kwargs)
    made = trainer.get_num_updates() > before and logged.get("sample_size", 1)
    if made and not math.isfinite(float(logged.get("loss", 0.0))):
        raise Diverged(before + 1, LOSS, samples)
    return logged


def end_diverged(original, trainer):
    """Raise Diverged for a FloatingPointError in the first call that fairseq makes when a training has raised one."""
    error = sys.exc_info()[1]
    if isinstance(error, Diverged):
        raise error
    if not isinstance(error, FloatingPointError) or "inconsistent between workers" in str(error):
        return original(trainer)
    kind = FLOOR if "Minimum loss scale" in str(error) else GRADIENTS
    raise Diverged(trainer.get_num_updates() + 1, kind, vars(trainer)[SAMPLES]) from error


def save_if_finite(original, cfg, trainer, *args, **kwargs):
    """Save a checkpoint; raise Diverged instead if a weight is not finite."""
    if not cfg.no_save and not all(agreement.gathered(all_finite(trainer.get_model()))):
        raise Diverged(trainer.get_num_updates(), WEIGHTS, vars(trainer).get(SAMPLES, []))
    return original(cfg, trainer, *args, **kwargs)


def train_or_end(original, cfg, trainer, task, epoch_itr):
    """Train one epoch; end the process with STATUS and one line if the training diverges."""
    try:
        return original(cfg, trainer, task, epoch_itr)
    except Diverged as error:
        update, kind, samples = error.update, error.kind, error.samples  # the traceback would keep the step's tensors
    line = headline(trainer, update, kind, samples)
    if agreement.is_first():
        print(f"{Path(sys.argv[0]).name}: error: {line}", file=sys.stderr)
    agreement.meet()
    raise SystemExit(STATUS)


def headline(trainer, update: int, kind: str, samples: list) -> str:
    """Return what happened in one line, the same on every rank. Scripts look for how it begins.

    The update is repeated, which names the first layer, unless that fails: then the line has no layer.
    """
    try:
        mine = repeat(trainer, samples, update - 1)
    except Exception:
        mine = ("", 0.0)
    found = agreement.gathered(mine)
    if kind == GRADIENTS and not all(math.isfinite(loss) for _, loss in found):
        kind = LOSS
    where = next((place for place, _ in found if place), "")
    return f"diverged at update {update}: {kind}" + (f", first at {where}" if where else "")
