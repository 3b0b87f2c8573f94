"""Which checkpoint a training resumes from: the last, or the newest before it that is whole."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import torch

from ..errors import UserError
from . import atomic, integrity

log = logging.getLogger(__name__)
DEFAULT = "checkpoint_last.pt"  # of --restore-file
NUMBERED = r"checkpoint(?:(\d+)|_(\d+)_(\d+)){}\.pt"  # the end of an epoch; an update in it
BEST = r"checkpoint(?:_best|\.best_.+){}\.pt"


def other_than_last(folder: Path, suffix: str) -> Path | None:
    """The checkpoint to resume from if it is not checkpoint_last; None: take that, or there is none at all.

    suffix: of this process's files, mostly "". Says in a line what was passed over; UserError if none is whole.
    """
    last = folder / f"{atomic.LAST}{suffix}.pt"
    reason = integrity.damage(last) if last.is_file() else "missing"
    if reason is None:
        return None
    others = earlier(folder, suffix)
    if reason == "missing" and not others:
        return None
    said = f"{last}: missing" if reason == "missing" else f"{last}: truncated or damaged ({reason})"
    atomic.spoilt(last)
    for path in others:
        if found := integrity.damage(path):
            log.warning(f"{path}: truncated or damaged too ({found})")
        else:
            log.warning(f"{said}; resuming from {path}")
            return path
    raise UserError(
        f"{said}, and {folder} holds no other checkpoint that is whole; nothing was changed: put one there, name one "
        "by --restore-file, or start over with another --save-dir"
    )


def earlier(folder: Path, suffix: str) -> list[Path]:
    """The checkpoints of the folder but the last one, the newest first, the best by validation at the end."""
    files = list(folder.iterdir()) if folder.is_dir() else []
    previous = [path for path in files if path.name == f"{atomic.PREVIOUS}{suffix}.pt"]
    numbered = re.compile(NUMBERED.format(re.escape(suffix)))
    by_number = {path: _number(match) for path in files if (match := numbered.fullmatch(path.name))}
    in_order = sorted(by_number, key=by_number.get, reverse=True)
    best = re.compile(BEST.format(re.escape(suffix)))
    scored = [path for path in files if best.fullmatch(path.name)]
    newest = sorted(previous + in_order[:1], key=updates, reverse=True)
    return newest + in_order[1:] + sorted(scored, key=updates, reverse=True)


def updates(path: Path) -> int:
    """The updates a checkpoint has had; -1 if it does not say. Reads little of it."""
    try:
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        return state["optimizer_history"][-1]["num_updates"]
    except Exception:  # of whatever a damaged file makes torch raise
        return -1


def _number(match: re.Match) -> tuple[int, int, int]:
    """The end of an epoch comes after every update in it."""
    epoch, within, update = match.groups()
    return (int(epoch), 1, 0) if epoch else (int(within), 0, int(update))
