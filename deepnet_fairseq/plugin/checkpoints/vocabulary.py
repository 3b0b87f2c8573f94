"""Compare the vocabulary that a checkpoint was trained with to that of the data at hand.

A vocabulary is the dictionaries of source and target, and the file that cut the text into their symbols: a
SentencePiece model or BPE codes. A checkpoint holds a hash of each, its digests (data/digests.py), in "task_state", the
state of its task. Sizes alone would not tell: `prepare text --vocab N` gives equal sizes for any text, and a model with
other symbols in the rows of its embeddings trains, translates and scores without an error.

The run of a checkpoint is the training that wrote it, and the data of its run are those on which it was trained. A
checkpoint of an older release, which has no digests, is compared by the data of its run, whose folder stands in its
settings; if they are gone, a warning says so. The origin of a checkpoint (origin_of) is its file, the settings of its
task, and its digests.

`data`, as fairseq calls the setting of its tasks, is a text: folders of binarised data, which files.split_paths tells
apart. Where a dict is "by side", its keys are "source" and "target", or one of them; the task of a language model has
its one dictionary under both.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fairseq import tasks
from omegaconf import DictConfig, OmegaConf

from ...data import digests
from ...errors import UserError
from ...files import split_paths
from ..distributed import agreement

log = logging.getLogger(__name__)
KEY = digests.KEY  # of the digests in a checkpoint's task_state, and of the origin while it is loaded
Digests = digests.Digests
SIDES = ("source", "target")
# parameters with a row for each symbol -> side whose dictionary says which symbol a row stands for
BY_SYMBOL = {
    "encoder.embed_tokens.weight": "source",
    "decoder.embed_tokens.weight": "target",
    "decoder.output_projection.weight": "target",
    "lm_head.weight": "source",
    "lm_head.bias": "source",
}


def symbols_of(dictionary: Any) -> list[str]:
    """Return the symbols of a fairseq dictionary in the order of the rows of an embedding.

    fairseq's TruncatedDictionary lists more symbols than its length; an embedding has as many rows as the length.
    """
    return list(dictionary.symbols[: len(dictionary)])


def digests_of(dictionaries: Mapping[str, Any], data: str | None, cutting: Path | None = None) -> Digests:
    """Return the digests of dictionaries, and of the file that cut the text.

    dictionaries: fairseq's, by side; cutting: the file that cut the text; data: folders of the binarised text, in which
    that file is looked for if `cutting` is None; None to look nowhere.
    """
    files = []  # if it stays empty, the digest of "pieces" is None
    if cutting is not None:
        files = [cutting]
    elif data:
        files = digests.cutting_files(data)

    found: Digests = {"pieces": digests.of_cutting(files)}
    for side in SIDES:
        dictionary = dictionaries.get(side)  # may be None, or another class than fairseq's, without symbols
        found[side] = digests.of_symbols(symbols_of(dictionary)) if hasattr(dictionary, "symbols") else None
    return found


def digests_of_task(task: Any) -> Digests | None:
    """Return the digests of the vocabulary of a task; None for a task without a dictionary, such as one for speech."""
    dictionaries = dictionaries_of(task)
    if not dictionaries:
        return None
    return digests_of(dictionaries, data_of(task))


def dictionaries_of(task: Any) -> dict[str, Any]:
    """Return a task's dictionaries by side, without those that it does not have."""
    found = {}
    for side in SIDES:
        try:
            dictionary = getattr(task, f"{side}_dictionary", None)
        except (NotImplementedError, AttributeError, KeyError, TypeError):  # from a property of somebody's own task
            continue
        if hasattr(dictionary, "symbols"):
            found[side] = dictionary
    return found


def data_of(task: Any) -> str | None:
    """Return the setting `data` of a task, a text of folders; None for a task without it."""
    settings = getattr(task, "cfg", None) or getattr(task, "args", None)  # `args` of a task without a dataclass
    data = getattr(settings, "data", None)
    return data if isinstance(data, str) else None


def origin_of(path: str | os.PathLike[str], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the origin of a checkpoint: {"file": path, "task": settings of its task, "digests": Digests or None}.

    content: of the file, as torch loads it. The origin is plain data, which can be broadcast to other ranks. "task" is
    {} if the file has no settings; "digests" is None for a checkpoint of an older release.
    """
    # the settings of the task: in the config, or among all arguments in a checkpoint of an old release of fairseq
    cfg = content.get("cfg")
    section = cfg.get("task") if isinstance(cfg, Mapping | DictConfig) else content.get("args")
    if isinstance(section, argparse.Namespace):  # all arguments; a config has them too, for a task without a dataclass
        section = {"_name": getattr(section, "task", None)} | vars(section)
    elif isinstance(section, DictConfig):
        section = OmegaConf.to_container(section, enum_to_str=True)

    return {
        "file": str(path),
        "task": dict(section) if isinstance(section, Mapping) else {},
        "digests": digests.recorded(content.get("task_state")),
    }


def attach_origin(path: str, content: Mapping[str, Any], state: dict[str, Any]) -> None:
    """Put the origin of a loaded checkpoint into its "task_state" under KEY, where the task finds it (DeepTask).

    path: of the file; content: of the file, before --model-overrides change its settings; state: what fairseq made of
    the content, changed in place.
    """
    before = state.get("task_state")
    task_state = dict(before) if isinstance(before, dict) else {}
    task_state[KEY] = origin_of(path, content)
    state["task_state"] = task_state


def task_state_of(origin: Mapping[str, Any]) -> dict[str, Digests]:
    """Return the task_state for a checkpoint that is made from another one, such as an export.

    origin: of the other one, as origin_of returns it.
    """
    return {} if origin["digests"] is None else {KEY: origin["digests"]}


def read_origin(path: str) -> dict[str, Any] | None:
    """Return the origin of a checkpoint, without reading its tensors; None if the file cannot be read.

    No error is raised then, because whoever loads the file gets one that explains why.
    """
    if not os.path.isfile(path):
        return None
    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception:  # a damaged file makes torch raise errors of any kind
        return None
    return origin_of(path, content) if isinstance(content, Mapping) else None


def describe_difference(saved: Digests, present: Digests) -> str | None:
    """Return in words what differs between two vocabularies; None if nothing does.

    A digest that one of the two does not have is not compared.
    """
    changed = []
    for name in digests.NAMES:
        before = saved.get(name)
        now = present.get(name)
        if before is not None and now is not None and before != now:
            changed.append(name)

    if not changed:
        return None
    if changed == ["pieces"]:
        return "other pieces (SentencePiece model or BPE codes)"
    # a change of the file that cut the text goes without saying if a dictionary has changed
    sides = [name for name in SIDES if name in changed]
    return "another dictionary" if len(sides) == 2 else f"another {sides[0]} dictionary"


def describe_mismatch(origin: dict[str, Any], present: Digests, data: str | None, place: str) -> str | None:
    """Return an error message, "FILE: was trained with ..." without advice, for a checkpoint of another vocabulary.

    None if the vocabularies are the same or cannot be compared. origin: the checkpoint's; present: digests of the data
    that it is to be used with; data: folders of these data, None if they have none; place: what the message calls them,
    such as "the data in DIR". Logs a warning if the data of a checkpoint without digests are gone.
    """
    saved = origin["digests"]
    if saved is None:  # of an older release: its digests are computed from the data of its run
        own_data = origin["task"].get("data")
        if not isinstance(own_data, str) or not own_data or _same_folder(own_data, data):
            return None  # nothing to compare, or the same data
        task = task_of_origin(origin)
        saved = digests_of_task(task) if task is not None else None
        if saved is None:
            log.warning(
                f"{origin['file']}: holds no digest of its vocabulary, and the data of its run ({own_data}) are gone: "
                f"see yourself that {place} have the same dictionary"
            )
            return None

    difference = describe_difference(saved, present)
    if difference is None:
        return None
    return f"{origin['file']}: was trained with {difference} than {place}"


def preparation_advice(origin: dict[str, Any], data: str | None) -> str:
    """Return the advice in an error message: how to get data that fit the model of a checkpoint.

    origin: the checkpoint's; data: folders of the data that do not fit it, None if they have none.
    """
    own_folder = split_paths(str(origin["task"].get("data") or "DATA"))[0]  # DATA where it is not known
    if data is not None and _same_folder(own_folder, data):
        return "the data of its run have been prepared again since: take a run on these data, or a copy of the old ones"
    # a checkpoint without settings of a task is taken for one of translation
    is_translation = str(origin["task"].get("_name") or "translation").startswith("translation")
    if is_translation:
        return f"prepare the text with `deepnet prepare text --like {shlex.quote(origin['file'])}`"
    dictionary = shlex.quote(f"{own_folder}/dict.txt")
    return f"prepare the text with the dictionary of its own (`deepnet prepare lm --dict {dictionary}`)"


def check_vocabulary(origin: dict[str, Any] | None, present: Digests | None, data: str | None, place: str) -> None:
    """Raise a UserError if a checkpoint was trained with another vocabulary than that of the data.

    origin: the checkpoint's, None if its file cannot be read; present: digests of the data that it is to be used with,
    None for data without a dictionary; data: folders of these data, None if they have none; place: what the message
    calls them, such as "the data in DIR". If origin or present is None, nothing is compared.
    """
    if origin is None or present is None:
        return
    problem = describe_mismatch(origin, present, data, place)
    if problem is not None:
        own_data = origin["task"].get("data")
        advice = preparation_advice(origin, data)
        raise UserError(f"{problem}; {advice}, or give the data that its own run had ({own_data})")


def old_rows_of_symbols(path: str, task: Any, new_vocabulary: bool) -> dict[str, list[int]] | None:
    """Return where the symbols of a training stand in a checkpoint of another vocabulary.

    The answer is {"source": rows, "target": rows}: for each symbol of the task's dictionary, in its order, the number
    of its row in the checkpoint's embedding, -1 for a symbol that the checkpoint does not have. None if the
    vocabularies are the same, or cannot be compared.

    path: of the checkpoint; task: the training's; new_vocabulary: whether --new-vocabulary is given. Without it a
    UserError is raised for another vocabulary.
    """
    origin = read_origin(path)
    present = task.digests
    if origin is None or present is None:
        return None
    data = data_of(task)
    problem = describe_mismatch(origin, present, data, f"the data in {data}")
    if problem is None:
        return None
    if not new_vocabulary:
        raise UserError(
            f"{problem}; {preparation_advice(origin, data)}, or give --new-vocabulary with --finetune-from-model to "
            "keep the embeddings of common symbols and learn the others"
        )

    old_dictionaries = _dictionaries_of_origin(origin)
    rows = {}
    for side, dictionary in dictionaries_of(task).items():
        row_of_symbol = {}  # in the checkpoint; stays empty if its dictionary is gone
        if side in old_dictionaries:
            row_of_symbol = {symbol: row for row, symbol in enumerate(symbols_of(old_dictionaries[side]))}
        rows[side] = [row_of_symbol.get(symbol, -1) for symbol in symbols_of(dictionary)]
        kept = sum(row >= 0 for row in rows[side])
        log.info(f"{path}: {kept:,} of {len(rows[side]):,} {side} symbols keep their embeddings, the others start anew")
    return rows


def _dictionaries_of_origin(origin: dict[str, Any]) -> dict[str, Any]:
    """Return by side the dictionaries with which a checkpoint was trained, from the data of its run.

    {} if these data are gone, or have been prepared again since with another vocabulary.
    """
    task = task_of_origin(origin)
    if task is None:
        return {}
    saved = origin["digests"]
    if saved is not None and describe_difference(saved, digests_of_task(task) or {}):
        return {}
    return dictionaries_of(task)


@contextmanager
def loading_by_symbol(trainer: Any, path: str, reset_optimizer: bool) -> Iterator[None]:
    """Let the trainer's model load a checkpoint of another vocabulary in the context, if --new-vocabulary is given.

    In the context the model's attribute `rows` is what old_rows_of_symbols returns. By it the model's load_state_dict
    puts the rows of the checkpoint's embeddings in the order of its own symbols (rows_by_symbol).

    trainer: a DeepTrainer; path: of the checkpoint; reset_optimizer: whether --reset-optimizer is given. Raises a
    UserError on all ranks if the checkpoint has another vocabulary and --new-vocabulary is not given, or is given with
    settings that do not go with it.
    """
    new_vocabulary = bool(getattr(trainer.cfg.model, "new_vocabulary", False))  # another package's model lacks the flag
    rows = agreement.broadcast_from_first(lambda: old_rows_of_symbols(path, trainer.task, new_vocabulary))
    if rows is None:  # the same vocabulary, or nothing to compare
        yield
        return
    # the moments and the average of weights would keep the rows in the order of the checkpoint's symbols
    if not reset_optimizer:
        raise UserError("--new-vocabulary", f"{path} has an optimiser's state of other symbols; give --reset-optimizer")
    if trainer.cfg.ema.store_ema:
        raise UserError("--new-vocabulary", "not with --store-ema; make the first updates without, then resume with it")
    model = trainer.get_model()
    model.rows = rows
    try:
        yield
    finally:
        model.rows = None


def rows_by_symbol(
    state: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor], rows: dict[str, list[int]]
) -> dict[str, torch.Tensor]:
    """Return a checkpoint's state dict with the rows of its embeddings in the order of the model's dictionaries.

    state: the checkpoint's state dict; own: the model's, from which the rows of symbols are taken that the checkpoint
    does not have; rows: as old_rows_of_symbols returns them. Copied tensors are on the CPU, in the model's dtype.
    """
    reordered = dict(state)
    is_language_model = "encoder.embed_tokens.weight" not in own or "decoder.embed_tokens.weight" not in own
    for name, side in BY_SYMBOL.items():
        if name not in own or name not in state or own[name].shape[1:] != state[name].shape[1:]:
            continue  # what does not fit is refused when the model loads it
        if is_language_model:
            side = "source"  # whose dictionary is that of the target too
        # a matrix may have fewer rows than its dictionary has symbols, in the model and in the checkpoint
        rows_of_model = rows[side][: len(own[name])]
        old_rows = torch.tensor([row if row < len(state[name]) else -1 for row in rows_of_model])
        is_known = old_rows >= 0
        value = own[name].detach().cpu().clone()
        value[: len(old_rows)][is_known] = state[name][old_rows[is_known]].to(value.dtype)
        reordered[name] = value
    return reordered


def task_of_origin(origin: dict[str, Any]) -> Any | None:
    """Set up the task with which a checkpoint was trained, on the same data; None if they are not there any more.

    origin: the checkpoint's.
    """
    settings = dict(origin["task"])
    data = settings.get("data")
    if not isinstance(data, str) or not Path(split_paths(data)[0]).is_dir():
        return None
    # the name of the task, which setup_task reads under "task": a dataclass has it as _name, old arguments as `task`
    settings["task"] = settings.pop("_name", None) or settings.get("task")
    try:
        with _tasks_log_no_info():
            return tasks.setup_task(argparse.Namespace(**settings))
    except Exception:  # fairseq raises errors of any kind if the data are not what they were
        return None


@contextmanager
def _tasks_log_no_info():
    """Let fairseq's tasks log nothing below a warning in the context.

    The tasks would log the sizes of their dictionaries, which here are those of another run.
    """
    logger = logging.getLogger("fairseq.tasks")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _same_folder(one: str, other: str | None) -> bool:
    """Return whether the first folders of two values of the setting `data` are the same; False if `other` is None."""
    if other is None:
        return False
    first_of_one = os.path.realpath(split_paths(one)[0])
    first_of_other = os.path.realpath(split_paths(other)[0])
    return first_of_one == first_of_other
