"""Data that are broken, or not each other's, before anything is trained with them; batching that loses no sentence.

fairseq ends with a page of calls in the middle of an epoch, on a GPU with a failed assertion of the device, or trains
on what it takes for text. It reads the whole of binarised files when it opens them; looking at all tokens costs little
more.
"""

from __future__ import annotations

import logging
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy
from fairseq.data import Dictionary, data_utils, indexed_dataset
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.tasks.sentence_prediction import SentencePredictionTask

from ..errors import UserError

log = logging.getLogger(__name__)
PROCESSES = "num_shards"  # in the state of an iterator
MAGIC, HEADER = b"MMIDIDX\x00\x00", struct.Struct("<9sQBQ")  # then sizes in int32, places in int64
TYPES = indexed_dataset._code_to_dtype
OLD_MAGIC = b"TNTIDX\x00\x00"
MEND = "binarise the text anew"
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


def open_checked(make, path: str, impl, *args, dictionary=None, **kwargs):
    """UserError, naming the file, for what fairseq-preprocess has not written."""
    index = indexed_dataset.index_file_path(path)
    if impl in ("mmap", "cached", "lazy", None) and os.path.exists(index):
        start = numpy.fromfile(index, "u1", HEADER.size).tobytes()
        if start.startswith(MAGIC):
            check_mapped(path, len(dictionary) if dictionary is not None else None)
        elif not start.startswith(OLD_MAGIC):
            raise UserError(f"{index}: is no index of binarised data, or damaged; {MEND}")
    return make(path, impl, *args, dictionary=dictionary, **kwargs)


def check_mapped(path: str, vocabulary: int | None) -> None:
    """UserError, naming the file, if PATH.idx and PATH.bin are not what fairseq-preprocess writes.

    vocabulary: types of the dictionary, all tokens must be below; None: not known. Memory: of the index alone.
    """
    index, data = indexed_dataset.index_file_path(path), indexed_dataset.data_file_path(path)
    start = numpy.fromfile(index, "u1", HEADER.size).tobytes()
    if len(start) < HEADER.size:
        raise UserError(f"{index}: truncated; {MEND}")
    _, version, code, sentences = HEADER.unpack(start)
    kind = numpy.dtype(TYPES.get(code, float))
    if version != 1 or kind.kind not in "iu":
        raise UserError(f"{index}: of version {version} with tokens of type {code}, or damaged; {MEND}")
    if os.path.getsize(index) != HEADER.size + 12 * sentences:
        raise UserError(f"{index}: truncated or damaged, its size is not that of {sentences:,} sentences; {MEND}")
    if not sentences:
        raise UserError(f"{index}: holds no sentence; {MEND}")
    size = os.path.getsize(data)
    sizes = numpy.fromfile(index, "<i4", sentences, offset=HEADER.size)
    offsets = numpy.fromfile(index, "<i8", sentences, offset=HEADER.size + 4 * sentences)
    short = numpy.flatnonzero(sizes < (0 if vocabulary is None else 1))  # alignments may be empty
    if short.size:
        raise UserError(f"{index}: sentence {short[0]} has no token, not even its end; {MEND}")
    ends = offsets + sizes.astype("i8") * kind.itemsize
    if (offsets < 0).any() or (ends > size).any() or (offsets % kind.itemsize).any():
        raise UserError(f"{data}: truncated, or {index} damaged: it tells of more bytes than {size:,}; {MEND}")
    if vocabulary is None:
        return
    tokens = numpy.memmap(data, kind, "r", shape=size // kind.itemsize)  # of any size: it is not copied
    wrong = tokens.max() if tokens.max() >= vocabulary else tokens.min()
    if not 0 <= wrong < vocabulary:
        told = f"{data}: holds token {wrong}, its dictionary has {vocabulary:,}"
        raise UserError(f"{told}; take the dict.LANG.txt that was made with it, or {MEND}")


def read_dictionary(read, dictionary: Dictionary, file) -> None:
    """UserError, naming the file, for one that is missing, empty or something else."""
    if not isinstance(file, str):
        read(dictionary, file)
        return
    before = len(dictionary)
    try:
        read(dictionary, file)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; give the dictionary of the data") from error
    except Exception as error:  # fairseq's own words for a wrong encoding are a bare Exception
        reason = "".join(letter if letter.isprintable() else "?" for letter in str(error).split(". ")[0][:150])
        raise UserError(f"{file}: is no dictionary of fairseq ({reason}); {MEND}") from error
    if len(dictionary) == before or min(dictionary.count[before:]) < 0:
        reason = "it is empty" if len(dictionary) == before else "a count is negative"
        raise UserError(f"{file}: is no dictionary of fairseq ({reason}); {MEND}")


def require_pairs(init, pairs, src, src_sizes, src_dict, tgt=None, *args, **kwargs) -> None:
    """UserError for sides of different lengths."""
    if tgt is not None and len(src) != len(tgt):
        told = f"{_name(src)} has {len(src):,} sentences, {_name(tgt)} {len(tgt):,}"
        raise UserError(f"{told}: each needs its twin; {MEND}")
    init(pairs, src, src_sizes, src_dict, tgt, *args, **kwargs)


def _name(dataset) -> str:
    return str(getattr(dataset, "_path", "the data"))


def load_pairs(load, data_path: str, split: str, src: str, src_dict, tgt: str, *args, **kwargs):
    """FileNotFoundError in one line, a UserError."""
    try:
        return load(data_path, split, src, src_dict, tgt, *args, **kwargs)
    except FileNotFoundError as error:
        told = f"{data_path}: holds no {split}.{src}-{tgt} with .{src}.idx, .{src}.bin and those of {tgt}"
        raise UserError(f"{told}; {MEND}, or name the languages that are there") from error


def explain_lengths(filtered, task, indices, dataset, max_positions=None, *args, **kwargs):
    """fairseq's words for a sentence that is too long, a bare Exception, in one line; and not all may be."""
    path = _name(getattr(dataset, "src", None))
    way_out = next((f"; {LONGER[kind]}" for kind in type(task).__mro__ if kind in LONGER), "")
    try:
        kept = filtered(task, indices, dataset, max_positions, *args, **kwargs)
    except Exception as error:
        if not str(error).startswith("Size of sample"):
            raise
        reason = re.sub(r"np\.int\d+\((\d+)\)", r"\1", str(error))
        raise UserError(f"{path}: {reason[0].lower()}{reason[1:]}{way_out}") from error
    if len(indices) and not len(kept):
        said = f"all sentences are longer than {max_positions}; raise --max-tokens or --max-...-positions"
        raise UserError(f"{path}: {said}{way_out}")
    return kept


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


def load_sentences(load, task, split: str, *args, **kwargs):
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
        said = str(error) or type(error).__name__
        raise UserError(f"{data.data}, {split}: {said.splitlines()[0]}") from error


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


def refuse_empty_prefix(step, task, generator, models, sample, prefix_tokens=None, constraints=None):
    """UserError for an empty reference: its </s> ends one hypothesis of the beam, and the others never end."""
    searched = prefix_tokens is not None and getattr(generator, "beam_size", 1) > 1
    if searched and (empty := prefix_tokens[:, 0] == task.target_dictionary.eos()).any():
        raise UserError(
            f"--prefix-size {prefix_tokens.size(1)}: line {int(sample['id'][empty].min()) + 1} of the data has an "
            "empty translation, which begins nothing; remove such pairs (scripts/prepare_text.sh --drop-empty), or "
            "take --beam 1"
        )
    return step(task, generator, models, sample, prefix_tokens=prefix_tokens, constraints=constraints)


def keep_last_batch(batch_by_size, indices, *args, **kwargs):
    """fairseq drops a last batch whose size is no multiple of --required-batch-size-multiple (8).

    Of the 6,750 sentences of IWSLT-14's test set fairseq-generate then translates and scores 6,744, without a word.
    """
    if not isinstance(indices, numpy.ndarray):
        indices = numpy.fromiter(indices, dtype=numpy.int64)
    batches = list(batch_by_size(indices, *args, **kwargs))
    kept = sum(len(batch) for batch in batches)
    fixed_shapes = kwargs.get("fixed_shapes", args[5] if len(args) > 5 else None)
    if kept < len(indices) and fixed_shapes is None:  # batches are consecutive slices
        batches.append(indices[kept:])
    return batches


def put_empty_first(train_step, trainer, samples, *args, **kwargs):
    """At an epoch's end a process that has fewer batches than the others computes some that count for nothing.

    fairseq takes all of an update's batches on a process for such if its last one is: with --update-freq the gradients
    of the others are then divided by too few tokens.
    """
    return train_step(trainer, sorted(samples, key=bool), *args, **kwargs)


def count_as_nothing(train_step, task, sample, model, criterion, optimizer, update_num, ignore_grad=False):
    """A batch that stands for none has no size and logs zeros."""
    loss, size, logged = train_step(task, sample, model, criterion, optimizer, update_num, ignore_grad)
    return (loss, size * 0, {key: value * 0 for key, value in logged.items()}) if ignore_grad else (loss, size, logged)


def note_processes(state_dict, iterator) -> dict:
    """A checkpoint counts the batches of one process, which has more of them when there are fewer processes."""
    return state_dict(iterator) | {PROCESSES: iterator.num_shards}


def resume_on_processes(load_state_dict, iterator, state: dict) -> None:
    """As many sentences as were read, on more or fewer processes than they were counted on."""
    before, now = state.get(PROCESSES, iterator.num_shards), iterator.num_shards
    done = state["iterations_in_epoch"] * before
    if done % now:
        log.warning(f"resumed on {now} processes after {before}: the last {done % now} batches come again")
    load_state_dict(iterator, state | {"iterations_in_epoch": done // now})


def get_buckets(sizes, num_buckets: int) -> numpy.ndarray:
    """Upper ends of at most num_buckets ranges of lengths, each with about as many of `sizes`; as fairseq has it."""
    return numpy.unique(numpy.percentile(sizes, numpy.linspace(0, 100, num_buckets + 1), method="lower")[1:])
