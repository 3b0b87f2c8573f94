"""Average several checkpoints of one run into a model that often translates better than any of them."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import torch
from fairseq import checkpoint_utils
from omegaconf import OmegaConf
from torch import Tensor

from ..errors import UserError
from ..files import save_tensors
from ..plugin.building import own_config
from ..plugin.checkpoints import reading, vocabulary
from ..plugin.checkpoints.epoch_weights import weights_of
from ..wording import counted

# Kinds of checkpoints: patterns of their names without the end, which is --checkpoint-suffix and .pt. The group of
# EPOCH and UPDATE is the number of the epoch and of the update.
EPOCH = r"(?:checkpoint|weights)(\d+)"  # saved after an epoch; weights: files of --epoch-weights
UPDATE = r"checkpoint_\d+_(\d+)"  # saved by --save-interval-updates: epoch and update
BEST = r"checkpoint\.best_(.+)"  # saved by --keep-best-checkpoints: metric and score
LATEST = r"checkpoint_(?:last|previous|best)"  # one of each in a run
# fields of the model's config that may change when a run is resumed, so that its checkpoints may differ in them
MAY_DIFFER = {"checkpoint_activations", "checkpoint_every", "cuda_graphs", "admin_profile",
              "deepnet_probe", "probe_interval", "probe_dir", "epoch_weights", "new_vocabulary"}  # fmt: skip


def last(folder: Path, k: int, suffix: str | None = None) -> list[Path]:
    """Return the last k checkpoints of a run, oldest first: those of epochs if there are k, else those by updates.

    folder: the run's --save-dir; suffix: its --checkpoint-suffix, None if the folder has only one run. Raises a
    UserError, naming the folder, if neither kind has k, or if `suffix` is None and there are runs of several suffixes.
    """
    if suffix is None:
        suffix = _only_suffix(folder)

    most = 0  # the number of checkpoints of EPOCH or of UPDATE, whichever is larger
    for kind in (EPOCH, UPDATE):
        numbered = [(int(number), path) for path, number in _of_kind(folder, kind, suffix).items()]
        if len(numbered) >= k:
            return [path for _, path in sorted(numbered)[-k:]]
        most = max(most, len(numbered))

    way_out = f"give --last {most}" if most else "train for an epoch, or with --save-interval-updates"
    raise UserError(folder, f"has {counted(most, 'checkpoint')} of epochs or of updates, not {k}; {way_out}")


def best(folder: Path, k: int, suffix: str | None = None) -> list[Path]:
    """Return the k checkpoints with the best validation score, best first, by the run's --best-checkpoint-metric.

    The checkpoints of epochs and of updates and those of --keep-best-checkpoints are read. folder, suffix: as for
    `last`. Raises a UserError if fewer than k have a finite score, or if one is not of this package's models.
    """
    if suffix is None:
        suffix = _only_suffix(folder)
    paths: list[Path] = []
    for kind in (EPOCH, UPDATE, BEST):
        paths += _of_kind(folder, kind, suffix).keys()

    # number of updates -> (score, path): files of the same update hold the same model, which counts once
    scored: dict[int, tuple[float, Path]] = {}
    maximize = False  # whether a larger score is better, the same in all checkpoints
    for path in sorted(paths):
        updates, score, maximize = _validation_score(path)
        if score is not None and math.isfinite(score):
            scored[updates] = (score, path)
    if len(scored) < k:
        raise UserError(
            folder,
            f"has {counted(len(scored), 'checkpoint')} with a validation score, not {k}; "
            "save more, or give a smaller --best",
        )

    ranked = sorted(scored.values(), key=lambda pair: pair[0], reverse=maximize)
    return [path for _, path in ranked[:k]]


def _validation_score(path: Path) -> tuple[int, float | None, bool]:
    """Read a checkpoint; return its number of updates, its score, and whether a larger score is better.

    The score is None if the checkpoint was saved without a validation. Raises a UserError for another package's model.
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    own_config(state, str(path))  # only for the UserError that it raises
    maximize = state["cfg"].checkpoint.maximize_best_checkpoint_metric
    updates = state["optimizer_history"][-1]["num_updates"]
    score = state["extra_state"].get("val_loss")
    return updates, score, maximize


def _of_kind(folder: Path, kind: str, suffix: str) -> dict[Path, str]:
    """Return the checkpoints of one kind in a folder: {path: the part of its name that the group of `kind` matches}.

    kind: EPOCH, UPDATE or BEST; suffix: --checkpoint-suffix of the run, "" for none. A suffix may be a number too, as
    that of a job: checkpoint112.pt is of epoch 1 and suffix 12 where a training in the folder has suffix 12, and of
    epoch 112 where none has.
    """
    pattern = re.compile(kind + re.escape(suffix) + r"\.pt")
    # a file whose name ends with a longer suffix of another training is that training's
    longer_suffixes = [other for other in suffixes(folder) if other != suffix and other.endswith(suffix)]
    endings_of_others = tuple(f"{other}.pt" for other in longer_suffixes)

    numbers = {}
    for path in folder.iterdir():
        match = pattern.fullmatch(path.name)
        if match and not path.name.endswith(endings_of_others):
            numbers[path] = match[1]
    return numbers


def suffixes(folder: Path) -> set[str]:
    """Return every --checkpoint-suffix of the trainings in a folder, by the names of their latest checkpoints.

    If no file has such a name, the suffix is read from each checkpoint. "" is that of a training without a suffix.
    """
    found = set()
    for path in folder.iterdir():
        match = re.fullmatch(LATEST + r"(.*)\.pt", path.name)
        if match:
            found.add(match[1])
    if found:
        return found
    return {reading.suffix_of(path) for path in folder.glob("*.pt")}  # opens each file, which is slow


def _only_suffix(folder: Path) -> str:
    """Return the --checkpoint-suffix of the only training in a folder that has checkpoints to average.

    These are checkpoints of epochs, of updates and of --keep-best-checkpoints. The result is "" if no training has any.
    Raises a UserError, naming the folder, if several trainings have some.
    """
    used = []
    for suffix in sorted(suffixes(folder) | {""}):  # a training without a suffix may lack the names of LATEST
        if any(_of_kind(folder, kind, suffix) for kind in (EPOCH, UPDATE, BEST)):
            used.append(suffix)
    if len(used) > 1:
        names = ", ".join(suffix or "''" for suffix in used)
        raise UserError(folder, f"holds checkpoints of several trainings; give one --checkpoint-suffix of {names}")
    return used[0] if used else ""


def average(paths: list[Path], out: Path) -> None:
    """Write the mean of the checkpoints' parameters to `out`, with the first one's config and no optimiser state.

    Vaswani et al. 2017, section 6.1, average the last 5 of a base model, written ten minutes apart.

    The sum is float64. At any time, however many checkpoints there are, only one of them is in memory beside the sum
    and the first one's weights. Raises a UserError, and writes nothing, for checkpoints of different runs, for one of
    another package's model, for a missing one, and for parameters that are not finite.
    """
    first: dict = {}  # content of the first checkpoint
    known_origin: dict | None = None  # of the first checkpoint that holds digests of its vocabulary
    sums: dict[str, Tensor] = {}  # name of a parameter -> its sum over checkpoints
    seen = set()  # numbers of updates after which the checkpoints were saved
    for path in paths:
        # The package's reading (checkpoints/reading.py) has replaced fairseq's: it refuses weights that are not finite,
        # and puts the origin of the checkpoint under vocabulary.KEY.
        state = weights_of(checkpoint_utils.load_checkpoint_to_cpu(str(path)))
        config = own_config(state, str(path))

        updates = state["optimizer_history"][-1]["num_updates"]
        if updates in seen:
            print(f"WARNING: {path} is of the same update as another one; it counts twice", file=sys.stderr)
        seen.add(updates)

        if not first:
            first = state
            first_config = config
        else:
            _check_same_run(first, first_config, other=state, config=config, first_path=paths[0], path=path)

        # "file": the checkpoint; "digests": of its dictionaries, None if an older release saved it
        origin = state["task_state"][vocabulary.KEY]
        if known_origin is None:
            known_origin = origin if origin["digests"] is not None else None
        else:
            digests = origin["digests"] or {}  # {}: digests that are missing are not compared
            difference = vocabulary.describe_difference(known_origin["digests"], digests)
            if difference:
                raise UserError(
                    path, f"was trained with {difference} than {known_origin['file']}; average checkpoints of one run"
                )

        for key, value in state["model"].items():
            if not value.is_floating_point():  # a counter or the like: that of the first checkpoint is written
                continue
            if key in sums:
                sums[key] += value
            else:
                sums[key] = value.to(torch.float64, copy=True)
        del state, config  # before the next one is read

    mean = dict(first["model"])
    for key, value in first["model"].items():
        if key in sums:
            mean[key] = (sums.pop(key) / len(paths)).to(value.dtype)  # popped, to free each sum
    _keep_ties(first["model"], mean)

    cfg = OmegaConf.to_container(first["cfg"], resolve=True, enum_to_str=True)
    task_state = dict(first["task_state"])
    del task_state[vocabulary.KEY]  # the origin, put there by reading; files hold the digests alone
    if known_origin is not None:
        task_state |= vocabulary.task_state_of(known_origin)
    save_tensors(first | {"model": mean, "cfg": cfg, "task_state": task_state}, out)


def _keep_ties(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    """Let parameters of `after` share a tensor if they share memory in `before`, so that each is written once.

    before: the parameters of a checkpoint, of which tied embeddings share memory; after: those to write, under the same
    names, changed in place.
    """
    owners: dict[tuple, str] = {}  # address, shape and stride of a tensor -> the first parameter that has it
    for key, value in before.items():
        if value.numel():  # empty tensors have no address
            memory = (value.data_ptr(), value.shape, value.stride())
            owner = owners.setdefault(memory, key)
            after[key] = after[owner]


def _check_same_run(first: dict, first_config, other: dict, config, first_path: Path, path: Path) -> None:
    """Raise a UserError, naming a difference, unless two checkpoints are of one run.

    first, other: contents of the checkpoints; first_config, config: their models' configs, field by name, as own_config
    returns them; first_path, path: their files.
    """
    for name in first_config:
        if config[name] != first_config[name] and name not in MAY_DIFFER:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(path, f"trained with {flag} {config[name]}, {first_path} with {first_config[name]}")

    first_seed = first["cfg"].common.seed
    seed = other["cfg"].common.seed
    if seed != first_seed:
        raise UserError(path, f"trained with --seed {seed}, {first_path} with {first_seed}; average one run's")

    expected = first["model"]
    found = other["model"]
    if expected.keys() != found.keys() or any(expected[key].shape != found[key].shape for key in expected):
        raise UserError(path, f"its parameters are not those of {first_path}; average checkpoints of one run")
