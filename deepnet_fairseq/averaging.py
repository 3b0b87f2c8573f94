"""The mean of several checkpoints of one run, a model that often translates better than any of them."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from fairseq import checkpoint_utils
from omegaconf import OmegaConf
from torch import Tensor

from .errors import UserError
from .whole_file import whole

EPOCH = re.compile(r"checkpoint(\d+)\.pt")
UPDATE = re.compile(r"checkpoint_\d+_(\d+)\.pt")
BEST = re.compile(r"checkpoint\.best_.+\.pt")


def last(folder: Path, k: int) -> list[Path]:
    """The last k checkpoints of a run, oldest first: epoch checkpoints if there are k, else those by updates."""
    for pattern in (EPOCH, UPDATE):
        numbered = [(int(m.group(1)), p) for p in folder.iterdir() if (m := pattern.fullmatch(p.name))]
        if len(numbered) >= k:
            return [path for _, path in sorted(numbered)[-k:]]
    raise UserError(f"{folder}: has no {k} checkpoints of epochs or of updates; save more, or give a smaller --last")


def best(folder: Path, k: int) -> list[Path]:
    """The k checkpoints with the best validation score, best first, by the run's own --best-checkpoint-metric."""
    scored, maximize = [], False
    for path in sorted(folder.iterdir()):
        if any(pattern.fullmatch(path.name) for pattern in (EPOCH, UPDATE, BEST)):
            state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
            score = state["extra_state"].get("val_loss")
            maximize = state["cfg"].checkpoint.maximize_best_checkpoint_metric
            if score is not None:
                updates = state["optimizer_history"][-1]["num_updates"]
                scored.append((score, updates, path))
    unique = {updates: (score, path) for score, updates, path in scored}  # the best ones are saved under two names
    if len(unique) < k:
        raise UserError(
            f"{folder}: has no {k} checkpoints with a validation score; save more, or give a smaller --best"
        )
    ranked = sorted(unique.values(), key=lambda pair: pair[0], reverse=maximize)
    return [path for _, path in ranked[:k]]


def average(paths: list[Path], out: Path) -> None:
    """Writes the mean of the parameters with the first checkpoint's config and no optimiser state.

    Accumulated in float64, one checkpoint in memory at a time beside the sum. UserError for checkpoints of different
    models, and for one that does not exist.
    """
    if len(paths) < 1:
        raise UserError("no checkpoints to average")
    first, total = None, {}
    for path in paths:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
        if first is None:
            first = state
        else:
            _check_same_model(first, state, paths[0], path)
        for key, value in state["model"].items():
            if value.is_floating_point():
                total[key] = total.get(key, 0) + value.double()
    mean = {key: _mean(value, total.get(key), len(paths)) for key, value in first["model"].items()}
    _keep_ties(first["model"], mean)
    _write(first | {"model": mean}, out)


def _mean(value: Tensor, total: Tensor | None, count: int) -> Tensor:
    return value if total is None else (total / count).to(value.dtype)


def _keep_ties(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    """Tensors that shared memory in the checkpoint are written once again."""
    seen: dict[int, str] = {}
    for key, value in before.items():
        owner = seen.setdefault(value.untyped_storage().data_ptr(), key) if value.numel() else key
        if owner != key and before[owner].shape == value.shape:
            after[key] = after[owner]


def _check_same_model(first: dict, other: dict, first_path: Path, path: Path) -> None:
    ours, theirs = first["model"], other["model"]
    if ours.keys() != theirs.keys() or any(ours[key].shape != theirs[key].shape for key in ours):
        raise UserError(f"{path}: its parameters are not those of {first_path}; average checkpoints of one run")
    for name in ("arch", "method", "encoder_layers", "decoder_layers", "encoder_attention_heads"):
        held, expected = (getattr(state["cfg"].model, name, None) for state in (other, first))
        if held != expected:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{path}: trained with {flag} {held}, {first_path} with {expected}; average one run's")
    for key, value in ours.items():  # constants of the method and flags
        if (value.dim() == 0 and key.count(".") == 1 or not value.is_floating_point()) and not value.equal(theirs[key]):
            raise UserError(f"{path}: its {key} differs from that of {first_path}; average checkpoints of one run")


def _write(state: dict, out: Path) -> None:
    state = dict(state)
    state["cfg"] = OmegaConf.to_container(state["cfg"], resolve=True, enum_to_str=True)
    state["last_optimizer_state"] = None
    with whole(out) as part:
        torch.save(state, part)
