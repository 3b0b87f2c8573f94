"""Check binarised data before anything is trained with them, and batch them without losing a sentence.

With broken data fairseq ends in the middle of an epoch, on a GPU with a failed assertion of the device, or trains on
what it takes for text. It reads the whole of binarised files when it opens them; a look at all tokens costs little
more.
"""

from __future__ import annotations

import logging
import os
import struct
from pathlib import Path

import numpy
from fairseq.data import indexed_dataset

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


def open_checked(make, path: str, impl, *args, dictionary=None, **kwargs):
    """Open binarised data; raise a UserError, naming the file, if fairseq-preprocess has not written them so."""
    index = indexed_dataset.index_file_path(path)
    if impl in ("mmap", "cached", "lazy", None) and os.path.exists(index):
        start = numpy.fromfile(index, "u1", HEADER.size).tobytes()
        if start.startswith(MAGIC):
            check_mapped(path, len(dictionary) if dictionary is not None else None)
        elif not start.startswith(OLD_MAGIC):
            raise UserError(f"{index}: is no index of binarised data, or damaged; {MEND}")
    return make(path, impl, *args, dictionary=dictionary, **kwargs)


def check_mapped(path: str, vocabulary: int | None) -> None:
    """Raise a UserError, naming the file, if PATH.idx and PATH.bin are not what fairseq-preprocess writes.

    vocabulary: size of the dictionary, above all tokens; None: not known. Takes the memory of the index alone.
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


def check_lengths(filtered, task, indices, dataset, max_positions=None, *args, **kwargs):
    """Leave out sentences that are too long, or raise a UserError where fairseq is told not to.

    And where all are too long: fairseq would go through empty epochs.
    """
    path = getattr(getattr(dataset, "src", None), "_path", "the data")
    try:
        kept = filtered(task, indices, dataset, max_positions, *args, **kwargs)
    except Exception as error:
        if str(error).startswith("Size of sample"):
            raise UserError(f"{path}: {error}") from error
        raise
    if len(indices) and not len(kept):
        said = f"all sentences are longer than {max_positions}; raise --max-tokens or --max-...-positions"
        raise UserError(f"{path}: {said}")
    return kept


def check_folder(task: str | None, folder: str, regression: bool = False) -> None:
    """Raise a UserError if the dictionaries of the task are not in the folder of its data."""
    patterns, maker = DICTIONARIES.get(task, ((), ""))
    for pattern in patterns[: 1 if regression else None]:
        if not any(Path(folder).glob(pattern)):
            name = pattern.replace("*", "LANG")
            raise UserError(f"the data folder {folder}: holds no {name}; {maker} makes one")


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
