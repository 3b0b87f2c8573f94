"""Average several checkpoints of one run into a model that often translates better than any of them."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

from fairseq import checkpoint_utils
from omegaconf import OmegaConf
from torch import Tensor

from ..errors import UserError
from ..files import save
from ..plugin.building import own_config
from ..plugin.checkpoints import vocabulary
from ..plugin.checkpoints.epoch_weights import weights_of

EPOCH = re.compile(r"(?:checkpoint|weights)(\d+)\.pt")  # weights: files of --epoch-weights
UPDATE = re.compile(r"checkpoint_\d+_(\d+)\.pt")
BEST = re.compile(r"checkpoint\.best_.+\.pt")
# these may differ within one run, between attempts
MAY_DIFFER = {"checkpoint_activations", "checkpoint_every", "admin_profile",
              "deepnet_probe", "probe_interval", "probe_dir", "epoch_weights", "new_vocabulary"}  # fmt: skip


def last(folder: Path, k: int) -> list[Path]:
    """Return the last k checkpoints of a run, oldest first: epoch checkpoints if there are k, else those by updates.

    Raises a UserError, naming the folder, if there are fewer of either.
    """
    most = 0
    for pattern in (EPOCH, UPDATE):
        numbered = [(int(m.group(1)), p) for p in folder.iterdir() if (m := pattern.fullmatch(p.name))]
        if len(numbered) >= k:
            return [path for _, path in sorted(numbered)[-k:]]
        most = max(most, len(numbered))
    way = f"give --last {most}" if most else "train for an epoch, or with --save-interval-updates"
    raise UserError(f"{folder}: has {most} checkpoints of epochs or of updates, not {k}; {way}")


def best(folder: Path, k: int) -> list[Path]:
    """Return the k checkpoints with the best validation score, best first, by the run's --best-checkpoint-metric.

    It reads every checkpoint of the folder. Raises a UserError if fewer than k have a finite score, or one is another
    model's.
    """
    scored: dict[int, tuple[float, Path]] = {}  # keyed by updates, because the best ones are saved under two names
    maximize = False
    for path in sorted(folder.iterdir()):
        if any(pattern.fullmatch(path.name) for pattern in (EPOCH, UPDATE, BEST)):
            state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
            own_config(state, str(path))
            maximize = state["cfg"].checkpoint.maximize_best_checkpoint_metric
            score = state["extra_state"].get("val_loss")
            if score is not None and math.isfinite(score):
                scored[state["optimizer_history"][-1]["num_updates"]] = (score, path)
    if len(scored) < k:
        raise UserError(
            f"{folder}: has no {k} checkpoints with a validation score; save more, or give a smaller --best"
        )
    ranked = sorted(scored.values(), key=lambda pair: pair[0], reverse=maximize)
    return [path for _, path in ranked[:k]]


def average(paths: list[Path], out: Path) -> None:
    """Write the mean of the parameters with the first checkpoint's config, without optimiser state.

    Vaswani et al. 2017, section 6.1, average the last 5 of a base model, written ten minutes apart.
    The sum is float64, with one checkpoint in memory at a time beside it. Raises a UserError, and writes nothing, for
    checkpoints of different runs, for a missing one, and for parameters that are not finite.
    """
    first, total, seen, known = None, {}, set(), None
    for path in paths:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
        if (update := (state.get("optimizer_history") or [{}])[-1].get("num_updates", path.resolve())) in seen:
            print(f"WARNING: {path} is of the same update as another one; it counts twice", file=sys.stderr)
        seen.add(update)
        if first is None:
            first, first_config = state, own_config(state, str(path))
        else:
            _check_same_run(first, first_config, state, own_config(state, str(path)), paths[0], path)
        origin = state["task_state"][vocabulary.KEY]
        if known is None:
            known = origin if origin["digests"] is not None else None
        elif other := vocabulary.differing(known["digests"], origin["digests"] or {}):
            raise UserError(f"{path}: was trained with {other} than {known['file']}; average checkpoints of one run")
        for key, value in state["model"].items():
            if value.is_floating_point():
                total[key] = total.get(key, 0) + value.double()
    mean = {
        key: (total[key] / len(paths)).to(value.dtype) if key in total else value
        for key, value in first["model"].items()
    }
    _keep_ties(first["model"], mean)
    cfg = OmegaConf.to_container(first["cfg"], resolve=True, enum_to_str=True)
    state = {**first["task_state"]}
    del state[vocabulary.KEY]
    state |= vocabulary.to_save(known) if known is not None else {}
    save(weights_of(first) | {"model": mean, "cfg": cfg, "task_state": state}, out)


def _keep_ties(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    """Tie tensors again that were tied in the checkpoint, so that each is written once."""
    owners: dict[tuple, str] = {}
    for key, value in before.items():
        owner = owners.setdefault((value.data_ptr(), value.shape, value.stride()), key) if value.numel() else key
        after[key] = after[owner]


def _check_same_run(first: dict, first_config, other: dict, config, first_path: Path, path: Path) -> None:
    ours, theirs = first["model"], other["model"]
    for name in first_config:
        if config[name] != first_config[name] and name not in MAY_DIFFER:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{path}: trained with {flag} {config[name]}, {first_path} with {first_config[name]}")
    seed, another = (state["cfg"].common.seed for state in (first, other))
    if seed != another:
        raise UserError(f"{path}: trained with --seed {another}, {first_path} with {seed}; average one run's")
    if ours.keys() != theirs.keys() or any(ours[key].shape != theirs[key].shape for key in ours):
        raise UserError(f"{path}: its parameters are not those of {first_path}; average checkpoints of one run")
