"""What the tasks of language models are given: folders, masking, labels, sentences that are too long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy
from fairseq.data import data_utils, indexed_dataset
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.tasks.sentence_prediction import SentencePredictionTask

from ...errors import UserError
from ..wrapping import wrap

DICTIONARIES = {  # task -> its dictionaries as patterns, and what makes them
    "translation": (("dict.*.txt",), "scripts/prepare_text.sh"),
    "language_modeling": (("dict.txt",), "`deepnet prepare-lm`"),
    "masked_lm": (("dict.txt",), "`deepnet prepare-lm`"),
    "sentence_prediction": (("input0/dict.txt", "label/dict.txt"), "fairseq-preprocess, docs/language_models.md,"),
}
SHARES = ("mask_prob", "leave_unmasked_prob", "random_token_prob")  # of the tokens, of those, and again of those
LONGER = {
    LanguageModelingTask: "give a larger --tokens-per-sample (and --max-target-positions, if that is given)",
    MaskedLMTask: "give a larger --tokens-per-sample: sentence, <s> and </s> fit in it",
    SentencePredictionTask: "give a larger --max-positions, or --shorten-method truncate",
}


def explain_mistakes() -> None:
    """UserError, naming file or flag, for data that the tasks in LONGER cannot use.

    Wraps their load_dataset and filter_indices_by_size. Idempotent.
    """
    for task in LONGER:
        wrap(task, "filter_indices_by_size", _short_enough)
        wrap(task, "load_dataset", _found)


def check_folder(task: str | None, folder: str, regression: bool = False) -> None:
    """UserError if the dictionaries of the task are not in the folder of its data."""
    patterns, maker = DICTIONARIES.get(task, ((), ""))
    for pattern in patterns[: 1 if regression else None]:
        if not any(Path(folder).glob(pattern)):
            name = pattern.replace("*", "LANG")
            raise UserError(f"the data folder {folder}: holds no {name}; {maker} makes one")


def check_settings(task: str | None, setting: Callable[[str, object], object]) -> None:
    """UserError, naming the flag, for numbers no data can be made with; setting(name, default): one of the task's."""
    if task == "sentence_prediction" and setting("num_classes", -1) < 1:
        raise UserError("--num-classes: give the number of classes, or of targets with --regression-target")
    length = setting("tokens_per_sample", None)
    if length is not None and length < 2:
        raise UserError(f"--tokens-per-sample {length}: must be at least 2")
    if task != "masked_lm":
        return
    for name in SHARES:
        if not 0 <= setting(name, 0) <= 1:
            raise UserError(f"--{name.replace('_', '-')} {setting(name, 0)}: must be at least 0 and at most 1")
    if not 0 < setting("mask_prob", 0.15) < 1:
        raise UserError(f"--mask-prob {setting('mask_prob', 0.15)}: must be above 0 and below 1")
    if sum(setting(name, 0) for name in SHARES[1:]) > 1:
        raise UserError("--leave-unmasked-prob and --random-token-prob: must be at most 1 together")


def _short_enough(filtered, task, *args, **kwargs):
    """Adds the way out to what is said of a sentence that is too long."""
    try:
        return filtered(task, *args, **kwargs)
    except UserError as error:
        way_out = next(LONGER[kind] for kind in type(task).__mro__ if kind in LONGER)
        raise UserError(f"{error}; {way_out}") from error


def _found(load, task, split: str, *args, **kwargs):
    """FileNotFoundError and the assertions of these three tasks, in one line."""
    data = getattr(task, "args", None) or task.cfg
    if isinstance(task, SentencePredictionTask) and not task.cfg.regression_target:
        _check_labels(task, split)
    try:
        return load(task, split, *args, **kwargs)
    except FileNotFoundError as error:
        raise UserError(f"{data.data}: holds no {split}.idx and {split}.bin; binarise the text anew") from error
    except (AssertionError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{data.data}, {split}: {str(error).splitlines()[0]}") from error


def _check_labels(task: SentencePredictionTask, split: str) -> None:
    """One a sentence, of --num-classes: fairseq ends with an index that is out of range, a GPU with an assertion."""
    folder, dictionary = Path(task.cfg.data), task.label_dictionary
    path = str(folder / "label" / split)
    labels = data_utils.load_indexed_dataset(path, dictionary)
    sentences = data_utils.load_indexed_dataset(str(folder / "input0" / split), task.source_dictionary)
    if not isinstance(labels, indexed_dataset.MMapIndexedDataset) or sentences is None:
        return
    tokens = numpy.frombuffer(labels._bin_buffer, labels._index.dtype)
    classes = tokens[tokens != dictionary.eos()].astype("i8") - dictionary.nspecial
    if not len(classes) == len(labels) == len(sentences):
        raise UserError(f"{path}.bin: {len(classes):,} labels for {len(sentences):,} sentences; each needs one")
    wrong = classes[(classes < 0) | (classes >= task.cfg.num_classes)]
    if wrong.size:
        name = dictionary[wrong[0] + dictionary.nspecial]
        raise UserError(f"{path}.bin: label {name} is class {wrong[0] + 1} of --num-classes {task.cfg.num_classes}")
