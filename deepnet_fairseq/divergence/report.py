"""What is told of a divergence: divergence.json and divergence.txt beside the checkpoints."""

from __future__ import annotations

import itertools
import json
import logging
import math
from pathlib import Path

from ..atomic_output import whole
from ..distributed import agreement
from ..errors import UserError
from ..probes.record import FILE as PROBES_FILE
from . import text
from .advice import advice
from .batch import describe
from .event import GRADIENTS, LOSS, Stop
from .search import broken_parameters, drop_gradients, repeat

JSON, TEXT = "divergence.json", "divergence.txt"
FORMAT = 1
NAMED = 20  # broken parameters by name
PROBED = 3  # rows of probes
logger = logging.getLogger(__name__)


def event(trainer, stop: Stop, epoch: int) -> dict:
    """All that is known of a divergence, plain data; on every rank at the same time, the same on each.

    Losses are in bits per token, lengths in tokens.
    """
    watch, cfg = trainer.watch, trainer.cfg
    rate = trainer.get_lr()
    mine = _on_this_rank(trainer, stop)
    everyone = agreement.gathered(mine)
    seen = next((i for i, one in enumerate(everyone) if one["first"]), 0)
    broken = sorted({name for one in everyone for name in one["broken"]})
    bad_loss = not all(math.isfinite(one["loss"]) for one in everyone if one["loss"] is not None)
    found = {
        "update": stop.update,
        "kind": LOSS if bad_loss and stop.kind == GRADIENTS else stop.kind,
        "reason": stop.reason,
        "epoch": epoch,
        "lr": rate,
        "first": everyone[seen]["first"],
        "rank": seen,
        "search": everyone[seen]["failed"],
        "loss": everyone[seen]["loss"],
        "parameters": {"count": len(broken), "first": broken[:NAMED]},
        "batch": everyone[seen]["batch"],
        "skipped": {"in_a_row": watch.skipped, "in_all": watch.skipped_in_all, "from_scale": watch.scale_before},
        "updates": watch.rows(),
        "probes": _probes(cfg.model),
        "model": _model(trainer),
        "setting": _setting(cfg),
        "rollbacks": {"limit": trainer.rollbacks.limit, "taken": len(trainer.rollbacks.taken)},
        "rollback": None,
    }
    return found | {"advice": advice(found, trainer)}


def _on_this_rank(trainer, stop: Stop) -> dict:
    found = {"broken": broken_parameters(trainer.get_model()), "first": None, "loss": None, "failed": None}
    try:
        found |= repeat(trainer, stop.samples, stop.update - 1)
    except Exception as error:  # whatever it is, the training has diverged, and that is to be told
        found["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        drop_gradients(trainer)
    target = getattr(trainer.task, "target_dictionary", None)
    return found | {"batch": describe(stop.samples, -1 if target is None else target.pad())}


def _model(trainer) -> dict:
    cfg = trainer.cfg.model
    names = ("method", "encoder_layers", "decoder_layers", "encoder_embed_dim", "decoder_embed_dim")
    found = {name: getattr(cfg, name) for name in names if hasattr(cfg, name)}
    return found | {"parameters": sum(p.numel() for p in trainer.get_model().parameters())}


def _setting(cfg) -> dict:
    schedule, common = cfg.lr_scheduler, cfg.common
    half = [name for name in ("fp16", "bf16", "amp") if getattr(common, name, False)]
    return {
        "lr": [float(rate) for rate in cfg.optimization.lr],
        "lr_scheduler": getattr(schedule, "_name", None),
        "warmup_updates": int(getattr(schedule, "warmup_updates", 0) or 0),
        "clip_norm": cfg.optimization.clip_norm,
        "precision": half[0] if half else "fp32",
        "update_freq": list(cfg.optimization.update_freq),
        "max_tokens": cfg.dataset.max_tokens,
        "seed": common.seed,
    }


def _probes(cfg) -> list[dict]:
    """The last rows of a run with --deepnet-probe, as its file has them."""
    path = Path(getattr(cfg, "probe_dir", None) or ".", PROBES_FILE)
    if not getattr(cfg, "deepnet_probe", None) or not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()[-PROBED:]
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue  # another rank is not done with it
    return [row for row in rows if "format" not in row]


def read(folder: Path) -> list[dict]:
    """The events of the run in `folder`, oldest first. UserError for a file that nobody here has written."""
    path = Path(folder, JSON)
    if not path.is_file():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        events = found["events"]
        if found["format"] != FORMAT or not all(isinstance(one["update"], int) for one in events):
            raise ValueError(f"format {found['format']!r}")
        return events
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: no report of a divergence, or broken ({error}); remove it") from error


def write(folder: Path, events: list[dict]) -> None:
    """Both files, each whole. A disk that takes neither is told of in the log."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole(folder / JSON) as part:
            part.write_text(json.dumps(_plain({"format": FORMAT, "events": events}), indent=1) + "\n", encoding="utf-8")
        with whole(folder / TEXT) as part:
            part.write_text("\n\n".join(map(text.long, events)) + "\n", encoding="utf-8")
    except OSError as error:
        logger.warning(f"{folder / JSON}: could not be written ({error})")
        for line in itertools.chain(*(text.long(one).splitlines() for one in events[-1:])):
            logger.warning(line)


def remove(folder: Path) -> None:
    """Removes both files, of a run that was here before."""
    for name in (JSON, TEXT):
        Path(folder, name).unlink(missing_ok=True)


def _plain(value):
    """JSON has no words for NaN and infinities: they become "nan", "inf" and "-inf"."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
